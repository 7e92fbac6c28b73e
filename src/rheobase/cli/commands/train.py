"""`rheobase train`: train a network for a method."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli import models
from rheobase.cli.images import REMEMBERED, Images, takes_images
from rheobase.cli.options import (
    LARGEST_SEED,
    Device,
    Model,
    Settings,
    check_tensors,
    ensure_apart,
    parse_settings,
)


@takes_images
def train(
    model: Model,
    images: Images = REMEMBERED,
    method: Annotated[str, typer.Option(help="The method to train for.")] = "opi",
    setting: Settings = None,
    recipe: Annotated[
        str | None, typer.Option(help="The name of a recipe; by default the one for MODEL, DATA and METHOD.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The file for the weights; by default in the folder runs.", callback=check_tensors),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs; by default the recipe's.", min=1)
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed of the training; by default the recipe's.", min=0, max=LARGEST_SEED),
    ] = None,
    device: Device = "auto",
) -> None:
    """Train a network with the activations of a method. An interrupted training resumes.

    Examples:
    - `rheobase train small --data digits --out runs/digits.safetensors`
    - `rheobase train small --method qcfs --setting levels=4`
    """
    import torch

    import rheobase
    from rheobase.analysis import accuracy
    from rheobase.io import save_weights
    from rheobase.methods import settings_of
    from rheobase.training import RECIPES, find_recipe

    settings = parse_settings(setting)
    trained_for = rheobase.methods.get(method, **settings)
    dataset, memory = images.load()
    usual = f"{model}-{memory['name']}"
    fitting = (name for name in (f"{usual}-{method}", usual, memory["name"]) if name in RECIPES)
    recipe = next(fitting, None) if recipe is None else recipe
    if recipe is None:
        raise ValueError(
            f"there is no recipe for {model} on {dataset.name}: pass one by --recipe, such as digits, which "
            f"suits small pictures; there are {', '.join(RECIPES)}"
        )
    chosen = find_recipe(recipe).suited_to(device)
    chosen = replace(chosen.lasting(epochs or chosen.epochs), seed=chosen.seed if seed is None else seed)
    if chosen.batch_size > (count := len(dataset.train)):
        typer.echo(f"batches of all {count} images instead of {chosen.batch_size}", err=True)
        chosen = replace(chosen, batch_size=count)
    torch.manual_seed(chosen.seed)
    prepared = rheobase.prepare(models.build_for(model, dataset), trained_for).to(device)
    out = out or Path("runs") / f"{model.replace(':', '-')}-{dataset.name}-{method}.safetensors"
    checkpoint = out.with_suffix(".checkpoint")
    ensure_apart(out, checkpoint)
    words = [method, *(f"{name} {value}" for name, value in settings_of(trained_for).items())]
    trained = rheobase.train(
        prepared,
        dataset.train,
        chosen,
        checkpoint=checkpoint,
        trained_for=", ".join(words),
    )
    typer.echo(f"training: {'; '.join(trained.notes)}", err=True)
    reached = accuracy(trained.model, dataset.test.to(device))
    save_weights(
        trained.model,
        out,
        {
            "model": model,
            "classes": len(dataset.classes),
            "dataset": dataset.name,
            "method": method,
            "settings": settings,
            "recipe": asdict(chosen),
            "data": memory,
        },
    )
    typer.echo(f"test accuracy {reached:.2f} %; weights: {out}")
