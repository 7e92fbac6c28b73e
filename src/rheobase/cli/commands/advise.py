"""`rheobase advise`: a conversion for a budget."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models, options
from rheobase.cli.images import REMEMBERED, Images, takes_images


@takes_images
def advise(
    model: options.Model = "small",
    weights: options.Weights = None,
    images: Images = REMEMBERED,
    lose: Annotated[float | None, typer.Option(help="Points of accuracy that may be lost.", min=0)] = None,
    steps: Annotated[
        int | None, typer.Option(help="Largest number of time steps to the answer.", min=1)
    ] = None,
    microjoules: Annotated[float | None, typer.Option(help="Largest energy per image.")] = None,
    lines: Annotated[
        int | None, typer.Option(help="Wires a neuron may drive; 1 for spikes of 0 and 1 only.", min=1)
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Number of training images to fit to and choose by.", min=2)
    ] = 512,
    seed: Annotated[int, typer.Option(help="Seed of the search.", min=0, max=options.LARGEST_SEED)] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the spiking network to this file.", callback=options.check_tensors),
    ] = None,
    record: options.RecordFile = None,
) -> None:
    """Search for the method, start, settings and number of steps that keep to a budget.

    It does not use test images. Without `--weights` a built-in network is trained first, in seconds on the
    digits. Ctrl-C ends the search and shows the best so far.

    Examples:
    - `rheobase advise small --lose 0.5`
    - `rheobase advise small --weights runs/digits.safetensors --steps 4 --out best.safetensors`
    """
    import rheobase

    options.ensure_apart(models.file_of(model), weights, out, record)
    if lose is None and steps is None and microjoules is None:
        raise ValueError("there is no budget: pass --lose, --steps or --microjoules")
    joules = None if microjoules is None else microjoules * 1e-6
    budget = rheobase.Budget(accuracy_loss=lose, steps=steps, joules=joules, lines=lines)
    dataset, memory = images.load(models.images_of(model, weights))
    ann = models.load_or_train(model, weights, dataset)
    advice = rheobase.advise(ann, models.take(dataset.train, samples), budget, seed=seed)
    said = [f"ANN: {advice.ann:.2f} % on the held-out half of the images", advice.verdict]
    if record is not None:
        advice.write(record)
        said.append(f"record: {record}")
    if out is not None:
        advice.snn.provenance.data.update(memory)
        rheobase.save(advice.snn, out)
        measure = ["rheobase", "evaluate", str(out), "--steps", str(advice.chosen.steps)]
        said.append(f"written to {out}; to measure it: `{shlex.join(measure)}`")
    typer.echo("\n".join(said))
    if advice.interrupted:
        raise typer.Exit(options.INTERRUPTED)
    raise typer.Exit(int(not advice.met))
