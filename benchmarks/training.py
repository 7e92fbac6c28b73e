"""Seconds for an epoch of the paper's trainings, next to the same steps compiled by torch and call by call.

    python benchmarks/training.py --out record.json
    python benchmarks/training.py --models resnet20 --images 512 --epochs 2 --device cpu

Each network is trained by its CIFAR-10 recipe, alone on the device, on random images: speed does not depend
on what they show. The first epoch compiles and is told apart; shown is the median of the others, and what as
many epochs as the recipe has would take. Beside it: what augmenting the images of one epoch takes.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from rheobase import prepare
from rheobase.io.files import replace_file
from rheobase.training import models
from rheobase.training.augmentation import Normalise
from rheobase.training.datasets.cifar10 import SOURCE as CIFAR10
from rheobase.training.datasets.split import Split
from rheobase.training.recipe import Recipe, find_recipe
from rheobase.training.trainer import train


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    data = make_data(options.images, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    head = {"benchmark": "training", "device": name, "torch": str(torch.__version__)}
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        more = ""
        if "minutes" in row:
            more = f", {row['epochs']} epochs {row['minutes']:.1f} min, the first {row['first']:.1f} s"
        print(f"{row['what']:28} {row['median']:8.3f} s for {options.images:,} images{more}", flush=True)
        if options.out:
            replace_file(Path(options.out), json.dumps(head | {"rows": rows}, indent=1) + "\n")

    keep(time_augmentation(data, options.repeats))
    for model in options.models:
        recipe = find_recipe(f"{model}-cifar10")
        if device.type != "cuda":
            recipe = replace(recipe, precision="float32", compile=False)
        if device.type == "cuda":
            keep({"what": f"{model}, kernels"} | time_epochs(model, recipe, data, options.epochs, device))
        ways = {"compiled": recipe} if recipe.compile else {}
        with patch("rheobase.training.step.fuse", return_value=None):
            for way, tried in (ways | {"call by call": replace(recipe, compile=False)}).items():
                keep({"what": f"{model}, {way}"} | time_epochs(model, tried, data, options.epochs, device))


def make_data(images: int, device: torch.device) -> Split:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (images,), generator=generator)
    return Split(pixels, labels, (0.5,) * 3, (0.25,) * 3).to(device)


def time_augmentation(data: Split, repeats: int) -> dict[str, Any]:
    """Augment all images at once, as often as asked for and twice before."""
    generator = torch.Generator(data.images.device).manual_seed(0)
    augment, seconds = CIFAR10.augment(Normalise(data.mean, data.std)), []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        augment(data.images, generator)
        if data.images.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {"what": "augmentation"} | _spread(seconds[2:])


def time_epochs(model: str, recipe: Recipe, data: Split, epochs: int, device: torch.device) -> dict[str, Any]:
    """Train for a few epochs and one more in front, which does not count."""
    torch.manual_seed(0)
    net = prepare(models.build(model, 10), "opi").to(device)
    short = replace(recipe, epochs=epochs + 1, batch_size=min(recipe.batch_size, len(data)))
    history = train(net, data, short, progress=False).history
    found = _spread([epoch.seconds for epoch in history[1:]])
    whole = found["median"] * recipe.epochs / 60
    return found | {"first": history[0].seconds, "epochs": recipe.epochs, "minutes": whole}


def _spread(seconds: list[float]) -> dict[str, Any]:
    middle = statistics.median(seconds)
    return {"median": middle, "slowest": max(seconds), "fastest": min(seconds), "n": len(seconds)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=["vgg16", "resnet20", "resnet18"])
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7, help="of the augmentation")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="where to write the record")
    return parser.parse_args()


if __name__ == "__main__":
    main()
