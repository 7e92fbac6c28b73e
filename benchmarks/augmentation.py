"""Images per second of each augmentation stage, beside a loop over the images with Pillow in the same run.

    python benchmarks/augmentation.py [--device cuda] [--images 50000] [--batch 512] [--repeats 7]

Both sides run the CIFAR-10 recipe. Pillow runs on one core and on fewer images, since its speed does not
depend on their number. Printed: the median over the repeats, with the slowest and fastest.
"""

import argparse
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps

from rheobase.training.augmentation.policy import CIFAR10_POLICY, find_magnitude
from rheobase.training.augmentation.transforms import Cutout, Normalise, Transform
from rheobase.training.datasets.cifar10 import SOURCE as CIFAR10

GREY = (128, 128, 128)
OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "shear_x": lambda picture, m: _transform(picture, (1, m, 0, 0, 1, 0)),
    "shear_y": lambda picture, m: _transform(picture, (1, 0, 0, m, 1, 0)),
    "translate_x": lambda picture, m: _transform(picture, (1, 0, m * 32, 0, 1, 0)),
    "translate_y": lambda picture, m: _transform(picture, (1, 0, 0, 0, 1, m * 32)),
    "rotate": lambda picture, m: picture.rotate(m, fillcolor=GREY),
    "color": lambda picture, m: ImageEnhance.Color(picture).enhance(1 + m),
    "contrast": lambda picture, m: ImageEnhance.Contrast(picture).enhance(1 + m),
    "brightness": lambda picture, m: ImageEnhance.Brightness(picture).enhance(1 + m),
    "sharpness": lambda picture, m: ImageEnhance.Sharpness(picture).enhance(1 + m),
    "posterize": lambda picture, m: ImageOps.posterize(picture, int(m)),
    "solarize": lambda picture, m: ImageOps.solarize(picture, int(m)),
    "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "invert": lambda picture, _: ImageOps.invert(picture),
}
STATISTICS = Normalise(CIFAR10.mean, CIFAR10.std)


def main() -> None:
    """Time every stage and the whole recipe, and print one line for each."""
    settings = _parse()
    device = torch.device(settings.device)
    images = torch.randint(0, 256, (settings.images, 3, 32, 32), dtype=torch.uint8, device=device)
    recipe = CIFAR10.augment(STATISTICS)
    few = images[: settings.pillow_images].cpu().permute(0, 2, 3, 1).contiguous().numpy()
    pictures = [Image.fromarray(picture) for picture in few]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads, n={settings.repeats}")
    print(f"{len(images):,} images in batches of {settings.batch:,}, Pillow {len(pictures):,} one by one")
    print(
        f"{'':12}{'images/s':>12}{'slowest':>12}{'fastest':>12}{'Pillow':>10}{'slowest':>10}{'fastest':>10}"
    )
    stages = {type(transform).__name__: transform for transform in recipe.transforms} | {"all": recipe}
    for stage, transform in stages.items():
        prepared = STATISTICS(images) if isinstance(transform, Cutout) else images
        ours = _time(partial(_run, transform, prepared.split(settings.batch)), settings)
        theirs = _time(partial(_run_pillow, stage, pictures), settings)
        rates = "".join(f"{len(images) / seconds:12,.0f}" for seconds in ours)
        baseline = "".join(f"{len(pictures) / seconds:10,.0f}" for seconds in theirs)
        gain = theirs[0] / len(pictures) * len(images) / ours[0]
        print(f"{stage:12}{rates}{baseline}{gain:10,.1f}x")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--images", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--pillow-images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    settings = parser.parse_args()
    fast = settings.device.startswith("cuda")
    settings.images = settings.images or (50_000 if fast else 5_000)
    settings.batch = settings.batch or (settings.images if fast else 500)
    return settings


def _time(work: Callable[[], object], settings: argparse.Namespace) -> tuple[float, float, float]:
    """Median, slowest and fastest seconds, after two runs that do not count."""
    seconds = []
    for repeat in range(settings.repeats + 2):
        _wait(settings.device)
        start = time.perf_counter()
        work()
        _wait(settings.device)
        if repeat >= 2:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), max(seconds), min(seconds)


def _run(transform: Transform, batches: Sequence[torch.Tensor]) -> None:
    generator = torch.Generator(batches[0].device).manual_seed(0)
    for batch in batches:
        transform(batch, generator)


def _run_pillow(stage: str, pictures: Sequence[Image.Image]) -> None:
    for picture in pictures:
        _in_pillow(stage, picture)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _in_pillow(stage: str, picture: Image.Image) -> object:
    if stage == "RandomCrop":
        return _crop(picture)
    if stage == "Flip":
        return _flip(picture)
    if stage == "AutoAugment":
        return _augment(picture)
    if stage == "Normalise":
        return _normalise(picture)
    if stage == "Cutout":
        return _cut(np.ones((3, 32, 32), np.float32))
    return _cut(_normalise(_augment(_flip(_crop(picture)))))


def _crop(picture: Image.Image) -> Image.Image:
    x, y = random.randint(0, 8), random.randint(0, 8)
    return ImageOps.expand(picture, 4).crop((x, y, x + 32, y + 32))


def _flip(picture: Image.Image) -> Image.Image:
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else picture


def _augment(picture: Image.Image) -> Image.Image:
    for name, probability, level in random.choice(CIFAR10_POLICY):
        if random.random() < probability:
            picture = OPERATIONS[name](picture, find_magnitude(name, level, random.choice((1, -1))))
    return picture


def _transform(picture: Image.Image, affine: Sequence[float]) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, affine, fillcolor=GREY)


def _normalise(picture: Image.Image) -> np.ndarray:
    pixels = np.asarray(picture, np.float32) / 255
    mean, std = np.asarray(STATISTICS.mean, np.float32), np.asarray(STATISTICS.std, np.float32)
    return ((pixels - mean) / std).transpose(2, 0, 1)


def _cut(pixels: np.ndarray) -> np.ndarray:
    y, x = random.randrange(32), random.randrange(32)
    pixels = pixels.copy()
    pixels[:, max(y - 8, 0) : y + 8, max(x - 8, 0) : x + 8] = 0
    return pixels


if __name__ == "__main__":
    main()
