"""Train a transformer, convert it by sigma-delta without retraining, and measure it: all in one call.

`python -m tools.transformers vit --data cifar10 --root FOLDER --device cuda` trains by the recipe
`vit-cifar10`, or takes trained weights, converts with several numbers of levels, runs all test images in each
profile, and writes one record for each. A training that was stopped continues from its checkpoint. The tables
of docs/transformers.md are made of these records and of that of benchmarks/attention_models.py.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from rheobase.io import load_weights, write_document
from rheobase.training import datasets, find_recipe, models, train
from tools import sigma_delta
from tools.markdown import table
from tools.measured import RECORDS, read
from tools.sigma_delta import label

SETTINGS = ((16, 4), (32, 5), (64, 6))
STEPS = 24


def measured() -> str:
    """The table of trained transformers."""
    return sigma_delta.show(sigma_delta.load_records("transformer-*.json"))


def architectures() -> str:
    """The table of published architectures with random weights."""
    found = read("attention-models")
    head = ["Network", "input", "sites", "neurons", "silent after", "exact", "int8", "L = 2^20, to the ANN"]
    head += ["event-driven", "multiplications", "events per neuron", "analog values", "evaluated"]
    rows = []
    for row in found["rows"]:
        equal = ["equal" if row[profile] else "differs" for profile in ("exact", "int8")]
        cells = [row["network"], row["input"], f"{row['sites']}", f"{row['neurons']:,}", f"{row['silent']}"]
        cells += [*equal, f"{row['fine']:.0e}", f"{row['share']:.4g} %", f"{row['multiplications']:,}"]
        cells += [f"{row['events']:.2f}", f"{row['analog']:,}", f"{row['evaluated']:.2f} times"]
        rows.append(cells)
    return (
        f"{table(head, rows)}\n\nRandom weights, {found['levels']} levels, {found['sizes']} sizes. Input: "
        "channels × height × width, or tokens. Exact and int8: whether the final outputs are bit-identical "
        "to those of the quantised ANN in the same arithmetic. L = 2^20, to the ANN: relative error of the "
        "output with so many levels. Evaluated: how often each analog value is computed for one input, on "
        "average. "
        f"{found['device']}, torch {found['torch']}."
    )


def outliers() -> str:
    """The table of rounding errors where some features are large."""
    found = read("attention-models")
    names = list(found["outliers"][0]["errors"])
    rows = [
        [f"{row['factor']}", *(f"{100 * row['errors'][name]:.2g} %" for name in names)]
        for row in found["outliers"]
    ]
    forms = list(found["outlier_network"][0]["accuracy"])
    accuracies = [
        [f"{row['factor']}", *(f"{row['accuracy'][form]:.1f}" for form in forms)]
        for row in found["outlier_network"]
    ]
    return (
        f"{table(['Large features, times', *names], rows)}\n\nError of a linear layer with 256 random "
        f"inputs, 4 of them larger, rounded to ±{found['levels']} levels.\n\n"
        f"{table(['Large features, times', *forms], accuracies)}\n\nAccuracy in percent of the transformer "
        "above, trained on the digits. Behind every norm 4 of 32 features are larger, and the weights that "
        "read them are scaled down by the same factor."
    )


def shares() -> str:
    """The table of errors by the quantum of the weights of attention."""
    found = read("attention-models")
    rows = [
        [f"{row['gain']}", *(f"{100 * row['errors'][name]:.2g} %" for name in ("observed", "fixed"))]
        for row in found["shares"]
    ]
    head = ["Logits, times", "found per head", f"1/{found['levels']}"]
    return (
        f"{table(head, rows)}\n\nError of the output of a vision transformer with 64 tokens and random "
        f"weights, {found['levels']} levels."
    )


def speed() -> str:
    """The table of images per second of a vision transformer."""
    found = read("attention-speed-h200")
    rates = {row["name"]: row["images_per_second"] for row in found["rows"]}
    peer = next(rate for name, rate in rates.items() if name.startswith("SpikingJelly"))
    rows = [[name, f"{rate:.4g}", f"{rate / peer:.2f}"] for name, rate in rates.items()]
    return (
        f"{table(['ViT-B/16', 'images per second', 'times SpikingJelly'], rows)}\n\nRandom weights, T = "
        f"{found['steps']}, batch {found['batch']}, {found['levels']} levels, {found['sizes']} sizes, "
        f"through `simulate` with its defaults; medians. {found['device']}, torch {found['torch']}, "
        f"SpikingJelly {found['spikingjelly']} with its recipe for transformers."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "transformers-trained": measured,
    "transformers-architectures": architectures,
    "transformers-outliers": outliers,
    "transformers-shares": shares,
    "transformers-speed": speed,
}


def main() -> None:
    """Train, convert and measure one network."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("network", choices=("vit", "convnext"))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--epochs", type=int, help="instead of the recipe's")
    parser.add_argument("--checkpoint", type=Path, help="the state of the training")
    parser.add_argument("--weights", type=Path, help="trained by the recipe, instead of a training")
    parser.add_argument("--calibration", type=int, default=512, help="number of training images")
    parser.add_argument("--limit", type=int, help="number of images of each split; by default all")
    parser.add_argument("--profiles", nargs="*", default=["exact", "int8"])
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=RECORDS, help="the folder of the records")
    parser.add_argument("--eager", action="store_true", help="do not compile the network")
    given = parser.parse_args()
    dataset = datasets.load(given.data, given.root)
    fitting = dataset.train if given.limit is None else dataset.train.take(given.limit)
    test = dataset.test if given.limit is None else dataset.test.take(given.limit)
    recipe = find_recipe(f"{given.network}-{given.data}")
    if given.epochs is not None:
        recipe = recipe.lasting(given.epochs)
    if given.eager:
        recipe = replace(recipe, compile=False, precision="float32")
    recipe = replace(recipe, batch_size=min(recipe.batch_size, len(fitting)))
    torch.manual_seed(recipe.seed)
    model = models.build(given.network, len(dataset.classes)).to(given.device)
    if given.weights is None:
        trained = train(model, fitting, recipe, checkpoint=given.checkpoint).model
    else:
        load_weights(model, given.weights)
        trained = model.eval()
    calibration = fitting.take(given.calibration)
    for levels, sizes in SETTINGS:
        for profile in given.profiles:
            record = sigma_delta.measure(
                trained,
                calibration.normalise(calibration.images).to(given.device),
                lambda: test.batches(given.batch_size),
                network=f"{label(given.network)} on {label(dataset.name)}, {recipe.epochs} epochs",
                levels=levels,
                sizes=sizes,
                steps=STEPS,
                profile=profile,
            )
            name = f"transformer-{given.network}-{dataset.name}-L{levels}-n{sizes}-{profile}.json"
            write_document(record, given.out / name)
            print(f"{name}: ANN {record.ann:.2f}, {record.accuracy}, {record.silence}", flush=True)


if __name__ == "__main__":
    main()
