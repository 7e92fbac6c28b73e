"""`rheobase demo`: a network trained, converted and simulated, with a page of its curves."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli.options import Data, Root, check_folder

if TYPE_CHECKING:
    from torch import nn

    from rheobase.training import Dataset

METHOD = "opi"
EXACT = "sigma-delta"
STEPS = 32
IMAGES = 500
CALIBRATION = 256


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the page.", callback=check_folder)] = Path("demo"),
    data: Data = "digits",
    root: Root = None,
) -> None:
    """Convert and simulate a small network that it trains on the digits, or a pretrained one on CIFAR.

    Example: `rheobase demo`
    """
    import rheobase
    from rheobase.analysis import accuracy, ann_joules, count_operations
    from rheobase.cli.console import show_evaluations
    from rheobase.cli.models import take
    from rheobase.reports import joined_page, record_evaluation
    from rheobase.training import datasets

    began = perf_counter()
    dataset = datasets.load(data, root)
    model = _find_network(dataset)
    test = take(dataset.test, IMAGES)
    ann = accuracy(model, test)
    typer.echo(f"2 converting it: membranes start at zero, at half the threshold, and by {EXACT}")
    networks = {
        "start zero": rheobase.convert(model, METHOD, initial=rheobase.ZERO),
        "start half": rheobase.convert(model, METHOD, initial=rheobase.HALF),
        EXACT: rheobase.convert(model, EXACT, take(dataset.train, CALIBRATION), progress=False),
    }
    typer.echo(f"3 simulating all for {STEPS} steps on {len(test):,} test images\n")
    results = {name: rheobase.evaluate(snn, test, STEPS) for name, snn in networks.items()}
    show_evaluations(results, ann)
    flop = count_operations(model, test.normalise(test.images[:1])).flop
    joules = ann_joules(flop)
    typer.echo(f"The ANN takes {flop:,} operations and {joules * 1e6:.3g} µJ per image.\n")
    title = f"rheobase on {dataset.name}"
    records = [
        record_evaluation(
            snn,
            results[name],
            title=f"{title}, {name}",
            dataset=dataset.name,
            ann_accuracy=ann,
            ann_joules=joules,
        )
        for name, snn in networks.items()
    ]
    for name, record in zip(networks, records, strict=True):
        record.write(out / f"{name.removeprefix('start ')}.json")
    page = joined_page(records, out / "index.html", title)
    typer.echo(f"page: {page}\n{perf_counter() - began:.0f} s in total")


def _find_network(dataset: "Dataset") -> "nn.Module":
    """The pretrained network for a dataset; if there is none, a small one is trained."""
    import torch

    import rheobase
    from rheobase.cli.models import build_for
    from rheobase.training import RECIPES, find_recipe, models, train

    name = f"resnet20-{dataset.name}"
    if name in models.catalogue():
        typer.echo(f"1 loading the pretrained {name}")
        return models.pretrained(name)
    recipe = find_recipe(dataset.name if dataset.name in RECIPES else "digits")
    recipe = replace(recipe, batch_size=min(recipe.batch_size, len(dataset.train)))
    torch.manual_seed(recipe.seed)
    network = rheobase.prepare(build_for("small", dataset), METHOD)
    typer.echo(f"1 training a small network on {len(dataset.train):,} images of {dataset.name}")
    return train(network, dataset.train, recipe).model
