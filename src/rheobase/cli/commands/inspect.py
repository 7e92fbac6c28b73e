"""`rheobase inspect`: what each call of a model becomes."""

from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.options import Model, Shape, explained_shape, parse_shape


def inspect(
    model: Model,
    shape: Shape = "3,32,32",
    classes: Annotated[int, typer.Option(help="Number of classes of a built-in network.")] = 10,
    method: Annotated[
        str | None, typer.Option(help="A method: what it has neurons for converts too.")
    ] = None,
) -> None:
    """Show what each call of a model becomes, and which calls are refused.

    Examples:
    - `rheobase inspect resnet20`
    - `rheobase inspect vit --method sigma-delta`
    """
    import torch

    import rheobase

    size = parse_shape(shape)
    network, x = models.build(model, classes, size), torch.randn(2, *size)
    with explained_shape(shape):
        coverage = rheobase.inspect(network, x, method)
    typer.echo(coverage)
    raise typer.Exit(int(not coverage.convertible))
