"""What `fine_tune` gains with its defaults, on a trained network of the package.

    python benchmarks/fine_tuning.py resnet20-cifar100 --root FOLDER --out record.json

Each conversion is measured on test images before and after one epoch of training. Conversions are fitted to
training images that `fine_tune` does not see. Nothing is chosen.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

import rheobase
from rheobase import methods
from rheobase.io.files import replace_file
from rheobase.training import Split, datasets, models

CONVERSIONS = {
    "signed + ftbc": ("opi", ("signed", "ftbc")),
    "hmt, 2 members + ftbc": (methods.get("hmt", members=2), ("ftbc",)),
}


def measure(options: argparse.Namespace, name: str, steps: int) -> dict[str, object]:
    """Convert, measure, train, and measure again."""
    about = models.catalogue()[options.model]
    dataset = datasets.load(about["dataset"], options.root)
    train, calibration = dataset.train.hold_out(options.calibration)
    train, test = train.take(options.images), dataset.test.take(options.test_images).to(options.device)
    method, then = CONVERSIONS[name]
    snn = rheobase.convert(
        models.pretrained(options.model).to(options.device),
        methods.get(method).aimed_at(steps),
        calibration.to(options.device),
        then=[methods.get(each).aimed_at(steps) for each in then],
        progress=False,
    )
    began = time.perf_counter()
    tuned = rheobase.fine_tune(snn, train, steps, progress=False)
    seconds = time.perf_counter() - began
    before, after = (_accuracy(network, test, steps) for network in (snn, tuned))
    return {"method": name, "steps": steps, "before": before, "after": after, "seconds": seconds}


def _accuracy(snn: rheobase.SNN, test: Split, steps: int) -> float:
    found = rheobase.evaluate(snn, test, steps, progress=False).final_accuracy
    assert found is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a trained network of the package")
    parser.add_argument("--root")
    parser.add_argument("--conversions", default=";".join(CONVERSIONS), help="separated by semicolons")
    parser.add_argument("--steps", default="2,4")
    parser.add_argument("--images", type=int, default=10_000, help="training images")
    parser.add_argument("--test-images", type=int, default=2_000)
    parser.add_argument("--calibration", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    head = {
        "benchmark": "fine tuning", "device": platform.machine() if options.device == "cpu" else "cuda",
        "torch": str(torch.__version__), "model": options.model, "images": options.images,
        "test images": options.test_images, "calibration": options.calibration,
    }  # fmt: skip
    rows: list[dict[str, object]] = []
    for name in options.conversions.split(";"):
        for steps in map(int, options.steps.split(",")):
            rows.append(measure(options, name.strip(), steps))
            print(rows[-1], flush=True)
            if options.out:
                replace_file(options.out, json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
