"""How much longer runs take next to a process that keeps all cores busy.

    python benchmarks/under_load.py --out record.json

Each piece of work is done alone and next to as many endless loops as there are cores, in turn, with nothing
set for either. A fair share of the cores makes it take twice as long.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import rheobase
from contenders import convert, images, network
from rheobase.io.files import replace_file
from rheobase.methods import hybrid
from rheobase.training import datasets, find_recipe, models, train
from training import make_data

PROFILES = ("exact", "fast", "int8")


def list_work(folder: Path) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    snn, plain = convert(network("resnet20")), network("resnet20")
    digits, small = datasets.load("digits"), models.build("small")
    x = digits.train.normalise(digits.train.images[:256])
    file = folder / "snn.safetensors"
    rheobase.save(rheobase.convert(small.eval(), calibration=x), file)
    recipe = replace(find_recipe("digits"), epochs=6)
    work: dict[str, Callable[[], object]] = {}
    for count in (32, 1):
        for profile in PROFILES:
            work[f"simulate, {profile}, {count} images"] = simulation(snn, images(count, seed=2), profile)
    for profile in PROFILES:
        command = [sys.executable, "-m", "rheobase.cli", "evaluate", str(file), "--profile", profile]
        work[f"rheobase evaluate, {profile}"] = lambda c=command: subprocess.run(
            c, check=True, capture_output=True
        )
    work["train, digits"] = lambda: train(small, digits.train, recipe, progress=False)
    larger = replace(find_recipe("resnet20-cifar10"), epochs=1, warmup_epochs=0, batch_size=64)
    larger = replace(larger, precision="float32", compile=False)
    data = make_data(256, torch.device("cpu"))
    work["train, ResNet-20"] = lambda: train(plain, data, larger, progress=False)
    work["fine-tune, ResNet-20"] = lambda: hybrid.fine_tune(
        snn, data.take(64), 2, batch_size=32, progress=False
    )

    def forward() -> None:
        with torch.inference_mode():
            for _ in range(32):
                plain(images(32, seed=2))

    work["plain PyTorch, 32 forward passes of 32 images"] = forward
    return work


def simulation(snn: rheobase.SNN, x: torch.Tensor, profile: str) -> Callable[[], object]:
    return lambda: rheobase.simulate(snn, x, 32, profile=profile)


def measure(work: Callable[[], object]) -> float:
    """The time of one call, a mean over half a second or more: a core is lent to others for less."""
    calls, began = 0, time.perf_counter()
    while not calls or time.perf_counter() - began < 0.5:
        work()
        calls += 1
    return (time.perf_counter() - began) / calls


@contextmanager
def busy_cores() -> Iterator[None]:
    """Keep all cores busy."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.5)
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="part of the names of what to time")
    parser.add_argument("--out", type=Path, help="the record to write, or to add to")
    options = parser.parse_args()
    head = {
        "benchmark": "under load",
        "device": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "repeats": options.repeats,
    }
    rows: list[dict[str, Any]] = []
    if options.out and options.out.exists():  # add to it
        before = json.loads(options.out.read_text("utf-8"))
        rows = before.pop("rows")
        if before != head:
            sys.exit(f"{options.out} was measured with {before}, now it is {head}")
    with tempfile.TemporaryDirectory() as folder:
        for name, work in list_work(Path(folder)).items():
            if options.only not in name:
                continue
            work()
            alone, busy = [], []
            for _ in range(options.repeats):  # each time the system places threads and loops anew
                alone.append(measure(work))
                with busy_cores():
                    busy.append(measure(work))
            ratio = statistics.median(busy) / statistics.median(alone)
            rows = [row for row in rows if row["work"] != name]
            rows.append({"work": name, "alone": alone, "busy": busy, "ratio": ratio})
            print(
                f"{name:50s} alone {1e3 * statistics.median(alone):8.1f} ms, "
                f"next to busy loops {1e3 * statistics.median(busy):8.1f} ms: {ratio:.2f}×",
                flush=True,
            )
            if options.out:
                replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
