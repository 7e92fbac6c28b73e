"""How commands come by their networks: one way to build a named model, to load and to train it."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from rheobase.network import SNN
    from rheobase.training import Dataset, Split

UNTRAINED_METHOD = "robust-norm"
"""Of networks that were trained for no method."""


def build(model: str, classes: int, shape: "Sequence[int]") -> "nn.Module":
    """A network: built in, for images of this shape; trained already, a user's own, or from an ONNX file."""
    from rheobase.training import models

    if model.endswith(".onnx"):
        from rheobase.exchange import from_onnx

        return from_onnx(model)
    if model in models.catalogue():
        return models.pretrained(model)
    return models.build(model, classes, **_fitting(model, shape))


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
    """A trained network: built, given the activations it was trained with, and its weights."""
    import rheobase
    from rheobase.io import load_weights, read_tensors

    network = build_for(model, dataset)
    if weights is None:
        if _is_fresh(model):
            raise ValueError(
                f"{model} has fresh weights: pass --weights, as `rheobase train {model}` writes them"
            )
        return network.eval()
    _, metadata = read_tensors(weights)
    if "method" in metadata:
        network = rheobase.prepare(network, metadata["method"])
    load_weights(network, weights)
    return network.eval()


def load_or_train(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network; where nobody gave weights, one trained as it is, by the recipe of its dataset."""
    import torch

    from rheobase.training import RECIPES, train

    if weights is not None or not _is_fresh(model):
        return load(model, weights, dataset)
    network = build_for(model, dataset)
    if (recipe := RECIPES.get(dataset.name)) is None:
        raise ValueError(
            f"{model} has fresh weights, and there is no quick training on {dataset.name}: pass --weights, "
            f"as `rheobase train {model}` writes them"
        )
    typer.echo(f"no --weights: training {model} on {dataset.name} first, {recipe.epochs} epochs", err=True)
    torch.manual_seed(recipe.seed)
    return train(network, dataset.train, recipe).model


def method_for(model: str, weights: Path | None) -> str:
    """The method a network was trained for; else one that takes any network."""
    from rheobase.io import read_tensors
    from rheobase.training import models

    if weights is not None:
        return str(read_tensors(weights)[1].get("method", UNTRAINED_METHOD))
    return str(models.catalogue().get(model, {}).get("method", UNTRAINED_METHOD))


def load_spiking(path: Path) -> "SNN":
    """A spiking network from a file of this package or a NIR file."""
    import rheobase

    return rheobase.from_nir(path) if path.suffix == ".nir" else rheobase.load(path)


def take(split: "Split", count: int | None) -> "Split":
    """At most so many images of a split, the same ones each time."""
    return split if count is None or count >= len(split) else split.take(count)


def _fitting(model: str, shape: "Sequence[int]") -> dict[str, int]:
    """What a built-in network's builder can be told about its images."""
    import inspect

    from rheobase.training import models

    if model not in models.BUILDERS or len(shape) != 3:
        return {}
    channels, height, width = shape
    known = {"channels": channels} | ({"size": height} if height == width else {})
    taken = inspect.signature(models.BUILDERS[model]).parameters
    return {name: value for name, value in known.items() if name in taken}


def _is_fresh(model: str) -> bool:
    from rheobase.training import models

    return ":" not in model and not model.endswith(".onnx") and model not in models.catalogue()
