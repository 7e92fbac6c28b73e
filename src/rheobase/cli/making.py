"""Commands that make something: trained networks, spiking ones, files for other simulators."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from rheobase.cli import models
from rheobase.cli.options import (
    LARGEST_SEED,
    Data,
    Device,
    MethodName,
    Model,
    Network,
    Root,
    Samples,
    Settings,
    Start,
    Weights,
    check_output,
    ensure_apart,
    parse_settings,
)


def train(
    model: Model,
    data: Data = "digits",
    method: Annotated[str, typer.Option(help="The method to train for.")] = "opi",
    recipe: Annotated[
        str | None, typer.Option(help="A recipe's name; by default the one for MODEL and DATA.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the weights.", callback=check_output)
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.", min=1)] = None,
    seed: Annotated[
        int | None, typer.Option(help="Instead of the recipe's.", min=0, max=LARGEST_SEED)
    ] = None,
    root: Root = None,
    device: Device = "cpu",
) -> None:
    """Train a network with the method's activations; an interrupted training resumes.

    Example: `rheobase train small --data digits --out runs/digits.safetensors`
    """
    from dataclasses import replace

    import torch

    import rheobase
    from rheobase.analysis import accuracy
    from rheobase.io import save_weights
    from rheobase.training import RECIPES, datasets, find_recipe
    from rheobase.training import train as fit

    if out is not None and out.suffix == ".checkpoint":
        raise ValueError(
            f"the checkpoint goes to {out}: give the weights another name, as {out.stem}.safetensors"
        )
    dataset = datasets.load(data, root)
    if (recipe := recipe or next((n for n in (f"{model}-{data}", data) if n in RECIPES), None)) is None:
        raise ValueError(
            f"there is no recipe for {model} on {dataset.name}: name one by --recipe; digits trains small "
            f"networks in seconds, the others are {', '.join(name for name in RECIPES if name != 'digits')}"
        )
    chosen = find_recipe(recipe)
    epochs = epochs or chosen.epochs
    warmup = min(chosen.warmup_epochs, epochs - 1)
    seed = chosen.seed if seed is None else seed
    chosen = replace(chosen, epochs=epochs, warmup_epochs=warmup, seed=seed)
    if device == "cpu":
        chosen = replace(chosen, precision="float32", compile=False)
    torch.manual_seed(chosen.seed)
    prepared = rheobase.prepare(models.build_for(model, dataset), method).to(device)
    out = out or Path("runs") / f"{model.replace(':', '-')}-{dataset.name}.safetensors"
    trained = fit(prepared, dataset.train, chosen, checkpoint=out.with_suffix(".checkpoint"))
    share = accuracy(trained.model, dataset.test.to(device))
    save_weights(
        trained.model,
        out,
        {"model": model, "classes": len(dataset.classes), "dataset": dataset.name, "method": method},
    )
    typer.echo(f"test accuracy {share:.2f} %; weights in {out}")


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
        Path, typer.Option(help="Where to write the spiking network.", callback=check_output)
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
    network = models.load(model, weights, dataset)
    snn = rheobase.convert(
        network,
        method or models.method_for(model, weights),
        models.take(dataset.train, samples),
        initial=initial,
        coding=coding,
        **parse_settings(setting),
    )
    rheobase.save(snn, out)
    found = "".join(f", {name} {value}" for name, value in snn.provenance.found.items())
    made = f"method {snn.provenance.method}{found}, start {snn.provenance.initial}"
    sites = "1 site" if len(snn.sites) == 1 else f"{len(snn.sites)} sites"
    typer.echo(f"{sites}, {made}: written to {out}")


def export(
    network: Network,
    out: Annotated[Path, typer.Argument(help="The NIR file to write.", callback=check_output)],
    data: Data = "digits",
    weights: Annotated[
        Literal["float32", "grid"],
        typer.Option(help="`grid` rounds weights to eight bits, so that the sums of all simulators agree."),
    ] = "float32",
    pools: Annotated[
        Literal["average", "convolution"],
        typer.Option(help="`convolution` writes average pools as convolutions."),
    ] = "average",
    steps: Annotated[int, typer.Option(help="Steps to record golden spikes for.", min=1)] = 32,
    samples: Annotated[int, typer.Option(help="Training images to record golden spikes for.", min=1)] = 64,
    root: Root = None,
) -> None:
    """Write a spiking network as a NIR file, with golden spikes beside it to check other simulators by.

    Example: `rheobase export snn.safetensors net.nir --weights grid --pools convolution`
    """
    from rheobase.exchange import golden_path, to_nir
    from rheobase.training import datasets

    ensure_apart(network, out)
    split = models.take(datasets.load(data, root).train, samples)
    written = to_nir(
        models.load_spiking(network),
        out,
        weights=weights,
        pools=pools,
        golden=split.normalise(split.images),
        steps=steps,
    )
    typer.echo(f"written: {out} and {golden_path(out)}")
    fired = f"on {len(split)} images over {steps} steps the network fires {written.spikes:,} spikes"
    why = ""
    if written.grid is not None:
        unit = 2.0**-written.grid.input_exponent
        why = f", as the grid rounds its weights to eight bits and inputs to multiples of {unit:g}"
    typer.echo(f"{fired}; the file differs at {written.differing:,} places{why}")
