"""The demonstration: a network trained, converted and run in spikes, with a page to look at."""

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from torch import nn

from rheobase.analysis import accuracy, ann_joules, count_operations, evaluate
from rheobase.cli.console import show
from rheobase.conversion import convert, prepare
from rheobase.network import HALF, ZERO
from rheobase.reports import RunRecord, joined_page, record_evaluation
from rheobase.training import datasets, find_recipe, models, train

METHOD = "opi"
STEPS = 32
IMAGES = 500


def run(out: Path, dataset: str, root: Path | None) -> list[RunRecord]:
    """Convert a network trained on a dataset with a zero and a half start, run both and show them."""
    console = Console(highlight=False)
    began = perf_counter()
    data = datasets.load(dataset, root)
    trained = _find_network(data, console)
    test = data.test if len(data.test) <= IMAGES else data.test.take(IMAGES)
    ann = accuracy(trained, test)
    console.print("[bold]2[/] converting it twice: membranes start at zero, and at half the threshold")
    networks = {str(start): convert(trained, METHOD, initial=start) for start in (ZERO, HALF)}
    console.print(f"[bold]3[/] running both in spikes for {STEPS} steps on {len(test):,} test images")
    results = {name: evaluate(snn, test, STEPS) for name, snn in networks.items()}
    console.print()
    show(results, ann)
    operations = count_operations(trained, test.normalise(test.images[:1])).flop
    joules = ann_joules(operations)
    console.print(f"The ANN needs {operations:,} operations and {joules * 1e6:.3g} µJ per image.\n")
    about: dict[str, Any] = {"dataset": data.name, "ann_accuracy": ann, "ann_joules": joules}
    found = []
    for name, snn in networks.items():
        title = f"rheobase on {data.name}, start {name}"
        found.append(record_evaluation(snn, results[name], title=title, **about))
        found[-1].write(out / f"{name}.json")
    page = joined_page(found, out / "index.html", f"rheobase on {data.name}")
    console.print(f"A page with the curves: {page}\n{perf_counter() - began:.0f} s in all.")
    return found


def _find_network(data: datasets.Dataset, console: Console) -> nn.Module:
    """A trained network of the package's for this dataset; where there is none, a small one is trained."""
    name = f"resnet20-{data.name}"
    if name in models.catalogue():
        console.print(f"[bold]1[/] taking {name}, which comes trained with the package")
        return models.pretrained(name)
    recipe = find_recipe(data.name)
    torch.manual_seed(recipe.seed)
    network = prepare(models.build("small", len(data.classes)), METHOD)
    console.print(f"[bold]1[/] training a small network with clips on {len(data.train):,} {data.name} images")
    return train(network, data.train, recipe).model
