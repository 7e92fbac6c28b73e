"""Commands that check: whether spikes are what they should be, and whether a chip would take them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rheobase.cli import models
from rheobase.cli.options import Ann, Data, Network, Root, Steps, Weights, check_output, ensure_apart

if TYPE_CHECKING:
    from torch import Tensor

    from rheobase.training import Split


def verify(
    network: Annotated[Path, typer.Argument(help="A NIR file, or a spiking network's own file.")],
    simulator: Annotated[
        str | None,
        typer.Option(
            "--in", help="Run a NIR file's golden inputs there: spikingjelly, snntorch, norse, sinabs."
        ),
    ] = None,
    ann: Ann = None,
    weights: Weights = None,
    data: Data = "digits",
    root: Root = None,
) -> None:
    """Check spikes: another simulator's against the golden ones, or a network's against its own theory.

    With `--in` every spike of a NIR file is compared in another simulator. With `--ann` a converted network
    is held against the one it was made from, so that a bug can be told from expected error.

    Example: `rheobase verify net.nir --in spikingjelly`,
    `rheobase verify snn.safetensors --ann small --weights runs/digits.safetensors`
    """
    if (simulator is None) == (ann is None):
        raise ValueError(
            "say what to hold the spikes against: --in SIMULATOR for a NIR file, or --ann MODEL, which the "
            "network was converted from"
        )
    if simulator is not None:
        from rheobase.exchange import check_simulator

        result = check_simulator(network, simulator)
        typer.echo(result)
        raise typer.Exit(int(result.total > 0))
    import rheobase
    from rheobase.training import datasets

    assert ann is not None
    dataset = datasets.load(data, root)
    checks = rheobase.verify(
        models.load(ann, weights, dataset),
        models.load_spiking(network),
        dataset.train,
        raise_on_failure=False,
    )
    typer.echo(checks)
    typer.echo("everything holds" if checks.passed else "it does not compute what it should")
    raise typer.Exit(int(not checks.passed))


def fit(
    network: Network,
    target: Annotated[
        str, typer.Option(help="Whose published limits to check: loihi, speck or generic-int8.")
    ],
    quantise: Annotated[
        bool, typer.Option(help="Make whole numbers of the weights, check those, and measure the loss.")
    ] = True,
    data: Data = "digits",
    steps: Steps = 32,
    samples: Annotated[int, typer.Option(help="Test images to measure on.", min=1)] = 500,
    input_bits: Annotated[int, typer.Option(help="Bits of an analog input, with its sign.", min=2)] = 8,
    out: Annotated[
        Path | None, typer.Option(help="Write the network in whole numbers here.", callback=check_output)
    ] = None,
    root: Root = None,
) -> None:
    """Check a spiking network against the published limits of a piece of hardware.

    No chip is run; what cannot be checked is listed. For loihi, where the environment variable RHEOBASE_LAVA
    names a Python 3.10 that has lava-nc, a small network is run in its fixed-point model.

    Example: `rheobase fit snn.safetensors --target generic-int8 --steps 16`,
    `rheobase fit snn.safetensors --target loihi --steps 8 --input-bits 3`
    """
    import rheobase
    from rheobase.cli.console import show_fit
    from rheobase.training import datasets

    ensure_apart(network, out)
    if out is not None and not quantise:
        raise ValueError("--out is for the network in whole numbers: leave it out, or --no-quantise")
    split = models.take(datasets.load(data, root).test, samples)
    result = rheobase.check_hardware(
        models.load_spiking(network),
        target,
        split,
        steps=steps,
        quantise=quantise,
        input_bits=input_bits,
        inputs=_pixel_range(split),
    )
    show_fit(result)
    if out is not None:
        if result.snn is None:
            raise ValueError(f"there is no network in whole numbers to write to {out}: see above")
        rheobase.save(result.snn, out)
        typer.echo(f"written to {out}")
    raise typer.Exit(int(not result.fits))


def _pixel_range(split: "Split") -> "Tensor":
    """The darkest and the brightest image there can be."""
    import torch

    image = split.images[0]
    return split.normalise(torch.stack([torch.zeros_like(image), torch.full_like(image, 255)]))
