"""`rheobase export`: a spiking network as a NIR file."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from rheobase.cli import models
from rheobase.cli.images import REMEMBERED, Images, takes_images
from rheobase.cli.options import Network, check_output, ensure_apart


@takes_images
def export(
    network: Network,
    out: Annotated[Path, typer.Argument(help="The NIR file to write.", callback=check_output)],
    images: Images = REMEMBERED,
    weights: Annotated[
        Literal["float32", "grid"],
        typer.Option(help="`grid` rounds weights to eight bits, so that the sums of all simulators agree."),
    ] = "float32",
    pools: Annotated[
        Literal["average", "convolution"],
        typer.Option(help="`convolution` writes average pools as convolutions."),
    ] = "average",
    steps: Annotated[int, typer.Option(help="Number of steps of the golden spikes.", min=1)] = 32,
    samples: Annotated[
        int, typer.Option(help="Number of training images for the golden spikes.", min=1)
    ] = 64,
) -> None:
    """Write a spiking network as a NIR file, with golden spikes to check other simulators by.

    Example: `rheobase export snn.safetensors net.nir --weights grid --pools convolution`
    """
    from rheobase.exchange import golden_path, to_nir

    ensure_apart(network, out, golden_path(out))
    snn = models.load_spiking(network)
    split = models.take(images.load_for(snn).train, samples)
    golden = split.normalise(split.images)
    written = to_nir(snn, out, weights=weights, pools=pools, golden=golden, steps=steps)
    typer.echo(f"written: {out} and {golden_path(out)}")
    why = ""
    if written.grid is not None:
        unit = 2.0**-written.grid.input_exponent
        why = f": the grid rounds weights to eight bits and inputs to multiples of {unit:g}"
    typer.echo(
        f"{written.spikes:,} spikes on {len(split)} images over {steps} steps; the file differs at "
        f"{written.differing:,} neurons and steps{why}"
    )
