"""How accurate networks are at few steps, by the number of levels of the clips that they were trained with.

    python benchmarks/levels.py --out record.json

Trains a network for `qcfs` with each number of levels and several seeds, converts it, plainly and with
`signed` and `ftbc`, and measures it on test images. Nothing is chosen.
"""

import argparse
from collections.abc import Iterator
from itertools import product

import torch

import rheobase
from rheobase import methods
from rheobase.analysis import accuracy
from rheobase.cli.models import build_for
from rheobase.training import Split, datasets, train
from training_runs import STEPS, options_of, recipe_of, write

CORRECTED = (2, 4)
"""The numbers of steps that corrections are fitted for."""


def measure(options: argparse.Namespace, levels: int, seed: int) -> Iterator[dict[str, object]]:
    """Train once, and give one row for each way to convert."""
    dataset = datasets.load(options.data, options.root)
    pool, calibration = dataset.train.hold_out(options.calibration)
    images, test = _first(pool, options.images), _first(dataset.test, options.test_images)
    torch.manual_seed(seed)
    network = build_for(options.network, dataset)
    prepared = rheobase.prepare(network, "qcfs", start=options.start, levels=levels).to(options.device)
    model = train(prepared, images, recipe_of(options, seed=seed), progress=False).model
    test, inputs = test.to(options.device), calibration.to(options.device)
    about = {"levels": levels, "seed": seed, "images": len(images), "tested": len(test)}
    about["ann"] = accuracy(model, test)
    found = rheobase.evaluate(rheobase.convert(model, "qcfs"), test, max(STEPS), progress=False)
    yield about | {"method": "qcfs", "accuracy": {t: found.at(t).accuracy for t in STEPS}}
    corrected = {}
    for t in CORRECTED:
        then = [methods.get("signed", steps=t), methods.get("ftbc", steps=t)]
        snn = rheobase.convert(model, "qcfs", inputs, then=then, progress=False)
        corrected[t] = rheobase.evaluate(snn, test, t, progress=False).at(t).accuracy
    yield about | {"method": "signed + ftbc", "accuracy": corrected}


def _first(split: Split, count: int | None) -> Split:
    return split if count is None else split.take(count)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--images", type=int, help="training images; by default all")
    parser.add_argument("--test-images", type=int, help="by default all")
    parser.add_argument("--calibration", type=int, default=200, help="training images held out to fit to")
    parser.add_argument("--start", type=float, default=8.0, help="thresholds before the training")
    parser.add_argument("--levels", default="2,4,8,16")
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    numbers = ([int(n) for n in text.split(",")] for text in (options.levels, options.seeds))
    for levels, seed in product(*numbers):
        for row in measure(options, levels, seed):
            rows.append(row)
            print(levels, seed, f"{row['ann']:.2f}", row["method"], row["accuracy"], flush=True)
            write(options, "levels", rows, start=options.start, calibration=options.calibration)


if __name__ == "__main__":
    main()
