"""Fine-tune a network on a folder of images, convert it, and measure it.

    python examples/image_folder.py FOLDER --epochs 10 --out flowers.safetensors

FOLDER contains train/CLASS/*.png and test/CLASS/*.png (or val). The network is the ResNet-20 that comes
trained on CIFAR-10 with the package; only its last layer is new. Images are scaled to 32 × 32 pixels.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import rheobase
from rheobase.analysis import accuracy
from rheobase.training import Recipe, datasets, models, train


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune and convert an image classifier.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("snn.safetensors"))
    options = parser.parse_args()

    torch.manual_seed(0)
    data = datasets.load(options.folder, size=32)
    images, test = data.train.to_rgb(), data.test.to_rgb()  # grey images get three equal channels
    model = models.pretrained("resnet20-cifar10")
    name, last = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    model.set_submodule(name, nn.Linear(last.in_features, len(data.classes)))
    batch_size = min(options.batch_size, len(images))
    recipe = Recipe(options.epochs, batch_size, options.learning_rate, augment="crop-flip")
    model = train(model, images, recipe).model

    snn = rheobase.convert(model, "opi", example=images.normalise(images.images[:2]))
    print(f"{', '.join(data.classes)}: ANN {accuracy(model, test):.2f} %")
    print(rheobase.evaluate(snn, test, options.steps))
    rheobase.save(snn, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
