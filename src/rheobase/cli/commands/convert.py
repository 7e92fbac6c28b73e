"""`rheobase convert`: a trained network becomes a spiking one."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.options import (
    Data,
    MethodName,
    Model,
    Root,
    Samples,
    Settings,
    Start,
    Weights,
    check_output,
    ensure_apart,
    parse_settings,
)


def convert(
    model: Model,
    weights: Weights = None,
    data: Data = "digits",
    method: MethodName = None,
    initial: Start = None,
    coding: Annotated[
        str | None, typer.Option(help="constant, poisson or tsc:WINDOW; by default the method's own.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The file for the spiking network.", callback=check_output)
    ] = Path("snn.safetensors"),
    samples: Samples = 512,
    setting: Settings = None,
    root: Root = None,
) -> None:
    """Convert a trained network and write the spiking one to a file.

    Example: `rheobase convert small --weights runs/digits.safetensors --data digits --initial half`
    """
    import rheobase
    from rheobase.training import datasets

    ensure_apart(weights, out)
    dataset = datasets.load(data, root)
    snn = rheobase.convert(
        models.load(model, weights, dataset),
        method or models.method_for(model, weights),
        models.take(dataset.train, samples),
        initial=initial,
        coding=coding,
        **parse_settings(setting),
    )
    rheobase.save(snn, out)
    made = snn.provenance
    found = "".join(f", {name} {value}" for name, value in made.found.items())
    sites = "1 site" if len(snn.sites) == 1 else f"{len(snn.sites)} sites"
    typer.echo(f"{sites}, method {made.method}{found}, start {made.initial}: written to {out}")
