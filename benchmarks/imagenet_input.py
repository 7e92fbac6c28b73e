"""Images per second of ImageNet's input: decoding and cropping from class folders and from Parquet shards.

    python benchmarks/imagenet_input.py [--images 512] [--workers 0 1 2] [--repeats 3] [--record FILE]

The pictures are synthetic JPEGs of 500×375 pixels, the mean size of ImageNet's, smooth enough to take about
as many bytes. Each line is a pass over all of them in the random order of an epoch, as in training, with the
baseline in the same run: a plain loop that opens each file with Pillow and does the same crop. The last line
is the rest of the augmentation, colour jitter and normalisation of whole batches.

torch has one thread: more would wait for each other and take the cores from the workers. The record holds the
machine's load at the start, without which its numbers say little.
"""

import argparse
import io
import json
import os
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from rheobase.io.environment import package_versions
from rheobase.io.files import replace_file
from rheobase.io.processes import Ranks
from rheobase.training.augmentation.transforms import Normalise
from rheobase.training.datasets import pictures
from rheobase.training.datasets.folders import Folder
from rheobase.training.loader import augmentations, load_epoch
from rheobase.training.recipe import Recipe

SIZE, CLASSES, ROWS = 224, 8, 100
CPU = torch.device("cpu")


def main() -> None:
    """Make the pictures, time every way to read them, print and perhaps record the results."""
    options = _parse()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as scratch:
        files, shards = Path(scratch) / "files", Path(scratch) / "shards"
        size = _write(files, shards, options.images)
        times = {"a loop with Pillow": _time(lambda: _loop(files), options.repeats)}
        for name, root in (("class folders", files), ("Parquet shards", shards)):
            for workers in options.workers:
                folder = Folder(root, SIZE, workers=workers)
                times[f"{name}, {workers} workers"] = _time(
                    lambda folder=folder: _pass(folder), options.repeats
                )
        folder = Folder(files, SIZE)
        batch = torch.stack([folder[i][0] for i in range(64)])
        jitter = _time(lambda: _augment(folder, batch, options.images), options.repeats)
        times["jitter and normalise, batches of 64"] = jitter
    rates = {
        name: {key: options.images / seconds for key, seconds in found.items()}
        for name, found in times.items()
    }
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {size / 1e3:.0f} kB a picture")
    for name, found in rates.items():
        print(
            f"{name:38}{found['median']:9,.1f} images/s ({found['slowest']:,.1f} … {found['fastest']:,.1f})"
        )
    if options.record:
        content = {
            "benchmark": "imagenet_input",
            "device": platform.machine(),
            "cores": os.cpu_count(),
            "load_at_start": load,
            "images": options.images,
            "bytes_per_image": round(size),
            "size": SIZE,
            "repeats": options.repeats,
            "images_per_second": rates,
            "versions": package_versions(),
        }
        replace_file(options.record, json.dumps(content, indent=1, sort_keys=True) + "\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, help="a file to write the results to")
    return parser.parse_args()


def _write(files: Path, shards: Path, count: int) -> float:
    """The same pictures as files and as shards; the mean of their sizes in bytes."""
    import pyarrow
    from pyarrow import parquet

    encoded = [_draw(number) for number in range(count)]
    labels = [number % CLASSES for number in range(count)]
    for number, (content, label) in enumerate(zip(encoded, labels, strict=True)):
        path = files / "train" / str(label) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    shards.mkdir()
    table = pyarrow.table({"image": encoded, "label": labels})
    parquet.write_table(table, shards / "train-00000-of-00001.parquet", row_group_size=ROWS)
    return sum(map(len, encoded)) / count


def _draw(number: int) -> bytes:
    rng = np.random.default_rng(number)
    coarse = Image.fromarray(rng.integers(0, 256, (94, 125, 3), dtype=np.uint8))
    grain = rng.normal(0, 6, (375, 500, 3))
    pixels = np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC), np.float64) + grain
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def _loop(root: Path) -> None:
    rng = random.Random(0)
    for path in sorted(root.rglob("*.jpg")):
        with Image.open(path) as picture:
            pictures.to_pixels(pictures.crop_at_random(picture.convert("RGB"), SIZE, rng))


def _pass(folder: Folder) -> None:
    recipe = Recipe(epochs=1, batch_size=32, learning_rate=0.1)
    for _ in load_epoch(folder, recipe, 0, 0, Ranks(), CPU):
        pass


def _augment(folder: Folder, batch: torch.Tensor, count: int) -> None:
    augment = augmentations()["imagenet"](Normalise(folder.mean, folder.std))
    draws = torch.Generator().manual_seed(0)
    for _ in range(count // len(batch)):
        augment(batch, draws)


def _time(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median, slowest and fastest seconds, after one run that does not count."""
    seconds = []
    for repeat in range(repeats + 1):
        began = time.perf_counter()
        work()
        if repeat:
            seconds.append(time.perf_counter() - began)
    return {"median": statistics.median(seconds), "slowest": max(seconds), "fastest": min(seconds)}


if __name__ == "__main__":
    main()
