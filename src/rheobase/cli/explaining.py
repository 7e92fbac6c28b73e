"""Commands that explain: where accuracy is lost, and which conversion to take."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.options import (
    INTERRUPTED,
    LARGEST_SEED,
    Data,
    MethodName,
    Model,
    Page,
    RecordFile,
    Root,
    Settings,
    Start,
    Steps,
    Weights,
    check_output,
    command_line,
    ensure_apart,
    parse_settings,
    say,
    write_run,
)


def diagnose(
    model: Model = "small",
    weights: Weights = None,
    data: Data = "digits",
    method: MethodName = None,
    initial: Start = None,
    setting: Settings = None,
    network: Annotated[
        Path | None, typer.Option(help="Diagnose this conversion of MODEL, instead of a new one.")
    ] = None,
    steps: Steps = 16,
    samples: Annotated[int, typer.Option(help="Training images to calibrate and diagnose on.", min=1)] = 256,
    remedies: Annotated[bool, typer.Option(help="Try what may help, and measure its gain.")] = True,
    page: Page = None,
    record: RecordFile = None,
    root: Root = None,
) -> None:
    """Find out where a conversion loses accuracy, site by site, and what helps.

    Without `--weights` a built-in network is trained first, in seconds on the digits. Ctrl-C ends the trying
    of remedies, and shows what was found until then.

    Example: `rheobase diagnose small --method max-norm --steps 8`,
    `rheobase diagnose small --weights runs/digits.safetensors --page diagnose.html --record diagnose.json`
    """
    import rheobase
    from rheobase.training import datasets

    ensure_apart(network, weights, page, record)
    given = {"--method": method, "--initial": initial, "--setting": setting}
    if network is not None and (unfit := [name for name, value in given.items() if value]):
        raise ValueError(f"{network} is converted already: leave {unfit[0]} out, or --network")
    dataset = datasets.load(data, root)
    calibration = models.take(dataset.train, samples)
    ann = models.load_or_train(model, weights, dataset)
    snn = (
        models.load_spiking(network)
        if network is not None
        else rheobase.convert(
            ann,
            method or models.method_for(model, weights),
            calibration,
            initial=initial,
            **parse_settings(setting),
        )
    )
    if page is None and record is None:
        found = rheobase.diagnose(ann, snn, calibration, steps, remedies=remedies)
        typer.echo(found)
        if found.untried:
            raise typer.Exit(INTERRUPTED)
        return
    from rheobase.reports import record_diagnosis

    kept = record_diagnosis(
        ann,
        snn,
        calibration,
        steps,
        title=f"{model} on {dataset.name}",
        dataset=dataset.name,
        command=command_line(),
        classes=dataset.classes,
        remedies=remedies,
    )
    written = write_run(kept, page, record)
    say([str(kept.diagnosis), *written])
    if kept.diagnosis is not None and kept.diagnosis.untried:
        raise typer.Exit(INTERRUPTED)


def advise(
    model: Model = "small",
    weights: Weights = None,
    data: Data = "digits",
    lose: Annotated[float | None, typer.Option(help="At most so many points of accuracy.", min=0)] = None,
    steps: Annotated[int | None, typer.Option(help="At most so many time steps.", min=1)] = None,
    microjoules: Annotated[float | None, typer.Option(help="At most so much energy for an image.")] = None,
    samples: Annotated[int, typer.Option(help="Training images to fit to and choose by.", min=2)] = 512,
    seed: Annotated[
        int, typer.Option(help="The same seed gives the same advice.", min=0, max=LARGEST_SEED)
    ] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write the spiking network to this file.", callback=check_output)
    ] = None,
    record: RecordFile = None,
    root: Root = None,
) -> None:
    """Find a conversion for a budget: methods, starts, settings and steps are tried in turn.

    Test images are not looked at. Ctrl-C ends the search, and shows the best until then. Without `--weights`
    a built-in network is trained first, in seconds on the digits.

    Example: `rheobase advise small --lose 0.5`,
    `rheobase advise small --weights runs/digits.safetensors --steps 4 --out best.safetensors`
    """
    import rheobase
    from rheobase.training import datasets

    ensure_apart(weights, out, record)
    if lose is None and steps is None and microjoules is None:
        raise ValueError("say what it may cost: --lose POINTS of accuracy, --steps or --microjoules")
    joules = None if microjoules is None else microjoules * 1e-6
    budget = rheobase.Budget(accuracy_loss=lose, steps=steps, joules=joules)
    dataset = datasets.load(data, root)
    ann = models.load_or_train(model, weights, dataset)
    advice = rheobase.advise(ann, models.take(dataset.train, samples), budget, seed=seed)
    said = [f"ordinary network: {advice.ann:.2f} % on the held-out half", advice.verdict]
    if record is not None:
        advice.write(record)
        said.append(f"record: {record}")
    if out is not None:
        rheobase.save(advice.snn, out)
        where = ["--data", data] if data != "digits" else []
        where += ["--root", str(root)] if root is not None else []
        measure = ["rheobase", "evaluate", str(out), *where, "--steps", str(advice.chosen.steps)]
        said.append(f"written to {out}: `{shlex.join(measure)}` measures it")
    say(said)
    if advice.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not advice.met:
        raise typer.Exit(1)
