"""Commands to see: a demonstration, what becomes of a model, which methods there are."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.options import Model, Root, Shape, check_folder, explained_shape, parse_shape


def demo(
    out: Annotated[Path, typer.Option(help="Where to write the page.", callback=check_folder)] = Path("demo"),
    dataset: Annotated[str, typer.Option(help="`digits`, or `cifar10` where the data is.")] = "digits",
    root: Root = None,
) -> None:
    """Train a network, convert it, and watch it answer in spikes: under a minute.

    Example: `rheobase demo`
    """
    from rheobase.cli.demo import run

    run(out, dataset, root)


def inspect(
    model: Model,
    shape: Shape = "3,32,32",
    classes: Annotated[int, typer.Option(help="Classes of a built-in network.")] = 10,
) -> None:
    """Show what each call of a model becomes, and what refuses.

    Example: `rheobase inspect resnet20`, `rheobase inspect small --shape 1,8,8`
    """
    import torch

    import rheobase

    size = parse_shape(shape)
    network, x = models.build(model, classes, size), torch.randn(2, *size)
    with explained_shape(shape):
        coverage = rheobase.inspect(network, x)
    print(coverage)
    if not coverage.convertible:
        raise typer.Exit(1)


def methods() -> None:
    """List the conversion methods.

    Example: `rheobase methods`
    """
    from rich.console import Console
    from rich.table import Table

    from rheobase import methods as registry

    table = Table("name", "needs", "what it is", box=None, header_style="bold", pad_edge=False)
    for name in registry.names():
        method = registry.find(name).example()
        needs = {"its own training": method.needs_training, "calibration data": method.needs_calibration}
        table.add_row(
            name, ", ".join(n for n, so in needs.items() if so), (type(method).__doc__ or "").split("\n")[0]
        )
    Console().print(table)
