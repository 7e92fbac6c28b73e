"""`rheobase convert`: a trained network becomes a spiking one."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models, options
from rheobase.cli.images import REMEMBERED, Images, takes_images


@takes_images
def convert(
    model: options.Model,
    weights: options.Weights = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Convert a network without trained weights.")
    ] = False,
    images: Images = REMEMBERED,
    method: options.MethodName = None,
    then: Annotated[
        str | None,
        typer.Option(
            help="Methods that correct it, separated by commas, each with its settings after colons, as "
            "signed,ftbc:steps=2:rate=0.2."
        ),
    ] = None,
    initial: options.Start = None,
    coding: Annotated[
        str | None, typer.Option(help="constant, poisson or tsc:WINDOW; by default the method's own.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="The file for the spiking network.", callback=options.check_tensors)
    ] = Path("snn.safetensors"),
    samples: options.Samples = 512,
    setting: options.Settings = None,
) -> None:
    """Convert a trained network and write the spiking one to a file, which remembers its images.

    Example: `rheobase convert small --weights runs/digits.safetensors --data digits --initial half`
    """
    import rheobase
    from rheobase.conversion import DEFAULT_METHOD
    from rheobase.network import cover, parse_coding
    from rheobase.training import datasets

    options.ensure_apart(models.file_of(model), weights, out)
    dataset, memory = images.load(models.images_of(model, weights))
    name, settings = models.choose_method(method, options.parse_settings(setting), model, weights)
    corrections = options.parse_corrections(then)
    method = DEFAULT_METHOD if name is None else name
    options.check_owners(method, settings, corrections)
    chosen = rheobase.methods.get(method, **settings)
    largest = datasets.find_largest(dataset.train.mean, dataset.train.std)
    snn = rheobase.convert(
        models.load(model, weights, dataset, random_weights=random_weights),
        name,
        models.take(dataset.train, samples),
        then=corrections,
        initial=initial,
        coding=cover(chosen.coding if coding is None else parse_coding(coding), largest),
        **settings,
    )
    snn.provenance.data.update(memory)
    rheobase.save(snn, out)
    made = snn.provenance
    found = "".join(f", {name} {value}" for name, value in made.found.items())
    sites = "1 site" if len(snn.sites) == 1 else f"{len(snn.sites)} sites"
    typer.echo(f"{sites}, method {made.title}{found}, start {made.initial}: written to {out}")
