"""Building, loading and training the networks that commands name."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from rheobase.network import SNN
    from rheobase.training import Dataset, Split


def build(model: str, classes: int, shape: "Sequence[int]") -> "nn.Module":
    """A network by name: built in, for inputs of this shape; pretrained; a user's own; or an ONNX file."""
    from rheobase.training import models

    if model.endswith(".onnx"):
        from rheobase.exchange import from_onnx

        return from_onnx(model)
    if model in models.catalogue():
        return models.pretrained(model)
    return models.build(model, classes, **_input_options(model, shape))


def build_for(model: str, dataset: "Dataset") -> "nn.Module":
    """A network for a dataset's classes and images.

    Raises:
        ValueError: It does not take such images.
    """
    import torch

    image = dataset.train.normalise(dataset.train.images[:1])
    network = build(model, len(dataset.classes), image.shape[1:])
    mode = network.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            network.eval()(image)
    except Exception as error:
        size = "×".join(map(str, image.shape[1:]))
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{model} does not take the images of {dataset.name}, which are {size} (channels, height, "
            f"width): {reason}"
        ) from error
    return network.train(mode)


def load(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network: built, with the activations it was trained with, and its weights."""
    import rheobase
    from rheobase.io import load_weights, read_tensors

    network = build_for(model, dataset)
    if weights is None:
        if _is_untrained(model):
            raise ValueError(f"{model} is not trained: pass --weights; `rheobase train {model}` writes them")
        return network.eval()
    _, metadata = read_tensors(weights)
    if "method" in metadata:
        network = rheobase.prepare(network, metadata["method"])
    load_weights(network, weights)
    return network.eval()


def load_or_train(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network; a built-in one without weights is trained by the recipe of its dataset."""
    import torch

    from rheobase.training import RECIPES, train

    if weights is not None or not _is_untrained(model):
        return load(model, weights, dataset)
    network = build_for(model, dataset)
    if (recipe := RECIPES.get(dataset.name)) is None:
        raise ValueError(
            f"{model} is not trained, and there is no quick recipe for {dataset.name}: pass --weights; "
            f"`rheobase train {model}` writes them"
        )
    typer.echo(f"no --weights: training {model} on {dataset.name} for {recipe.epochs} epochs", err=True)
    torch.manual_seed(recipe.seed)
    return train(network, dataset.train, recipe).model


def method_for(model: str, weights: Path | None) -> str | None:
    """The method a network was trained for; None if it was trained for none."""
    from rheobase.io import read_tensors
    from rheobase.training import models

    known = models.catalogue().get(model, {}) if weights is None else read_tensors(weights)[1]
    return str(known["method"]) if "method" in known else None


def load_spiking(path: Path) -> "SNN":
    """A spiking network from a file of this package or a NIR file."""
    import rheobase

    return rheobase.from_nir(path) if path.suffix == ".nir" else rheobase.load(path)


def take(split: "Split", count: int | None) -> "Split":
    """At most the given number of images of a split, the same ones each time."""
    return split if count is None or count >= len(split) else split.take(count)


def _input_options(model: str, shape: "Sequence[int]") -> dict[str, int]:
    """The options of a built-in network's builder that fit its inputs."""
    import inspect

    from rheobase.training import models

    if model not in models.BUILDERS or len(shape) != 3:
        return {}
    channels, height, width = shape
    known = {"channels": channels} | ({"size": height} if height == width else {})
    taken = inspect.signature(models.BUILDERS[model]).parameters
    return {name: value for name, value in known.items() if name in taken}


def _is_untrained(model: str) -> bool:
    from rheobase.training import models

    return ":" not in model and not model.endswith(".onnx") and model not in models.catalogue()
