"""`rheobase convert`: a trained network becomes a spiking one."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models, options


def convert(
    model: options.Model,
    weights: options.Weights = None,
    data: options.Data = "digits",
    method: options.MethodName = None,
    initial: options.Start = None,
    coding: Annotated[
        str | None, typer.Option(help="constant, poisson or tsc:WINDOW; by default the method's own.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The file for the spiking network.", callback=options.check_output)
    ] = Path("snn.safetensors"),
    samples: options.Samples = 512,
    setting: options.Settings = None,
    root: options.Root = None,
) -> None:
    """Convert a trained network and write the spiking one to a file.

    Example: `rheobase convert small --weights runs/digits.safetensors --data digits --initial half`
    """
    import rheobase
    from rheobase.training import datasets

    options.ensure_apart(weights, out)
    dataset = datasets.load(data, root)
    snn = rheobase.convert(
        models.load(model, weights, dataset),
        method or models.method_for(model, weights),
        models.take(dataset.train, samples),
        initial=initial,
        coding=coding,
        **options.parse_settings(setting),
    )
    rheobase.save(snn, out)
    made = snn.provenance
    found = "".join(f", {name} {value}" for name, value in made.found.items())
    sites = "1 site" if len(snn.sites) == 1 else f"{len(snn.sites)} sites"
    typer.echo(f"{sites}, method {made.method}{found}, start {made.initial}: written to {out}")
