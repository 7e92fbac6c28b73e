"""`rheobase bench`: the speed of a simulation on this machine."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.options import Device, Model, RecordFile, Shape, Steps, explained_shape, parse_shape


def bench(
    model: Model,
    shape: Shape = "3,32,32",
    steps: Steps = 32,
    batch_size: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 32,
    repeats: Annotated[int, typer.Option(help="Number of timed calls.", min=1)] = 5,
    record: RecordFile = None,
    device: Device = "auto",
) -> None:
    """Time the simulation of a model in each profile, next to plain implementations.

    A built-in network has random weights. On a CPU the time depends on how many neurons fire, so that a
    pretrained network gives more realistic numbers.

    Examples:
    - `rheobase bench small --shape 1,8,8 --steps 8`
    - `rheobase bench vgg16 --batch-size 512 --device cuda`
    """
    import torch

    import rheobase
    from rheobase.analysis import bench as measure
    from rheobase.cli.console import show_timings
    from rheobase.io import replace_file

    size = parse_shape(shape)
    network = models.build(model, 10, size).eval()
    x = torch.randn(batch_size, *size, generator=torch.Generator().manual_seed(0))
    with explained_shape(shape):
        snn = rheobase.convert(network, "max-norm", x, initial=rheobase.HALF).to(device)
    found = measure(network, snn, x.to(device), steps, repeats=repeats)
    if record is not None:
        replace_file(record, json.dumps({n: asdict(t) for n, t in found.items()}, indent=1) + "\n")
    show_timings(found, batch_size, f"{model}, batch {batch_size}, T = {steps}, {device}")
    if record is not None:
        typer.echo(f"record: {record}")
