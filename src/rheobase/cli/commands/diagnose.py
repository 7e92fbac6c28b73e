"""`rheobase diagnose`: where a conversion loses accuracy."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models, options
from rheobase.cli.images import REMEMBERED, Images, takes_images

_STEPS = 16


@takes_images
def diagnose(
    model: options.Model = "small",
    weights: options.Weights = None,
    images: Images = REMEMBERED,
    method: options.MethodName = None,
    initial: options.Start = None,
    setting: options.Settings = None,
    network: Annotated[
        Path | None, typer.Option(help="A conversion of MODEL; by default a new one is made.")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Number of time steps; by default 16, or as many as the network's neurons need.", min=1
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Number of training images for calibration and diagnosis.", min=1)
    ] = 256,
    remedies: Annotated[bool, typer.Option(help="Try remedies and measure their gain.")] = True,
    page: options.Page = None,
    record: options.RecordFile = None,
) -> None:
    """Find out where a conversion loses accuracy, site by site, and what helps.

    Without `--weights` a built-in network is trained first, in seconds on the digits. Ctrl-C ends the trial
    of remedies and shows the results so far.

    Examples:
    - `rheobase diagnose small --method max-norm --steps 8`
    - `rheobase diagnose small --weights runs/digits.safetensors --page diagnose.html --record diagnose.json`
    """
    import rheobase
    from rheobase.cli.console import show_result
    from rheobase.reports import record_diagnosis

    options.ensure_apart(models.file_of(model), network, weights, page, record)
    given = {"--method": method, "--initial": initial, "--setting": setting}
    if network is not None and (unused := [name for name, value in given.items() if value]):
        raise ValueError(f"{network} is converted already: leave out {unused[0]} or --network")
    snn = None if network is None else models.load_spiking(network)
    known = models.images_of(model, weights)
    dataset = images.load(known)[0] if snn is None else images.load_for(snn, known)
    calibration = models.take(dataset.train, samples)
    ann = models.load_or_train(model, weights, dataset)
    if snn is None:
        name, settings = models.choose_method(method, options.parse_settings(setting), model, weights)
        snn = rheobase.convert(ann, name, calibration, initial=initial, **settings)
    steps = models.choose_steps(snn, steps, _STEPS)
    written: list[str] = []
    if page is None and record is None:
        found = rheobase.diagnose(ann, snn, calibration, steps, remedies=remedies)
    else:
        run = record_diagnosis(
            ann,
            snn,
            calibration,
            steps,
            title=f"{model} on {dataset.name}",
            dataset=dataset.name,
            command=options.command_line(),
            classes=dataset.classes,
            remedies=remedies,
        )
        assert run.diagnosis is not None
        found, written = run.diagnosis, options.write_run(run, page, record)
    show_result(found)
    for line in written:
        typer.echo(line)
    if found.untried:
        raise typer.Exit(options.INTERRUPTED)
