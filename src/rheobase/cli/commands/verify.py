"""`rheobase verify`: check a network's spikes."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.images import REMEMBERED, Images, takes_images
from rheobase.cli.options import Ann, Weights

_FAILED = (
    "some checks failed: --ann and --weights are not the network that was converted, or there is a bug in "
    "the conversion"
)


@takes_images
def verify(
    network: Annotated[Path, typer.Argument(help="A spiking network's file, or a NIR file.")],
    simulator: Annotated[
        str | None,
        typer.Option(
            "--in",
            help="Run the golden inputs of a NIR file in this simulator: spikingjelly, snntorch, norse or "
            "sinabs.",
        ),
    ] = None,
    ann: Ann = None,
    weights: Weights = None,
    images: Images = REMEMBERED,
) -> None:
    """Check spikes: another simulator's against the golden ones, or a network's against theory.

    With `--in`, every spike of a NIR file is compared in another simulator. With `--ann`, a converted network
    is compared with its original, which tells a bug from expected error.

    Examples:
    - `rheobase verify net.nir --in spikingjelly`
    - `rheobase verify snn.safetensors --ann small --weights runs/digits.safetensors`
    """
    if simulator is not None and ann is None:
        from rheobase.exchange import check_simulator

        result = check_simulator(network, simulator)
        typer.echo(result)
        raise typer.Exit(int(result.total > 0))
    if ann is None or simulator is not None:
        raise ValueError(
            "choose what to compare with: --in SIMULATOR for a NIR file, or --ann MODEL, the model that was "
            "converted"
        )
    import rheobase

    snn = models.load_spiking(network)
    dataset = images.load_for(snn, models.images_of(ann, weights))
    model = models.load(ann, weights, dataset)
    checks = rheobase.verify(model, snn, dataset.train, raise_on_failure=False)
    typer.echo(checks)
    typer.echo("all checks passed" if checks.passed else _FAILED)
    raise typer.Exit(int(not checks.passed))
