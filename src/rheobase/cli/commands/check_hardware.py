"""`rheobase check-hardware`: a network and the limits of a chip."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli import models
from rheobase.cli.images import REMEMBERED, Images, takes_images
from rheobase.cli.options import USUAL_STEPS, Network, StepsOfNetwork, check_tensors, ensure_apart

if TYPE_CHECKING:
    from torch import Tensor

    from rheobase.training import Split


@takes_images
def check_hardware(
    network: Network,
    target: Annotated[
        str, typer.Option(help="The hardware: loihi, loihi-2, spinnaker-2, speck or generic-int8.")
    ],
    quantise: Annotated[
        bool, typer.Option(help="Round the weights to integers, check those, and measure the loss.")
    ] = True,
    images: Images = REMEMBERED,
    steps: StepsOfNetwork = None,
    samples: Annotated[int, typer.Option(help="Number of test images to measure on.", min=1)] = 500,
    input_bits: Annotated[int, typer.Option(help="Bits of an analog input, with its sign.", min=2)] = 8,
    out: Annotated[
        Path | None, typer.Option(help="Write the network in integers to this file.", callback=check_tensors)
    ] = None,
) -> None:
    """Check a spiking network against the published limits of neuromorphic hardware.

    No chip is used; what cannot be checked is listed. For loihi, if the environment variable RHEOBASE_LAVA
    names a Python 3.10 with lava-nc, a small network is run in its fixed-point model.

    Examples:
    - `rheobase check-hardware snn.safetensors --target generic-int8 --steps 16`
    - `rheobase check-hardware snn.safetensors --target loihi --steps 8 --input-bits 3`
    """
    import rheobase
    from rheobase.cli.console import show_hardware

    ensure_apart(network, out)
    if out is not None and not quantise:
        raise ValueError("--out writes the network in integers: leave out --out or --no-quantise")
    snn = models.load_spiking(network)
    split = models.take(images.load_for(snn).test, samples)
    result = rheobase.check_hardware(
        snn,
        target,
        split,
        steps=models.choose_steps(snn, steps, USUAL_STEPS),
        quantise=quantise,
        input_bits=input_bits,
        inputs=_pixel_range(split),
    )
    show_hardware(result)
    if out is not None:
        if result.snn is None:
            why = "the sum code has its integers in the profile int8; leave out --out"
            why = why if snn.code == "sum" else "see above"
            raise ValueError(f"there is no network in integers to write to {out}: {why}")
        rheobase.save(result.snn, out)
        assert result.grid is not None
        unit = 2.0**-result.grid.input_exponent
        rounded = f"; its inputs must be rounded to multiples of {unit:g}" if result.grid.analog else ""
        typer.echo(f"written to {out}{rounded}")
    raise typer.Exit(int(not result.fits))


def _pixel_range(split: "Split") -> "Tensor":
    """The darkest and the brightest possible image."""
    import torch

    image = split.images[0]
    return split.normalise(torch.stack([torch.zeros_like(image), torch.full_like(image, 255)]))
