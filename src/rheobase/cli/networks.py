"""How commands come by their networks: one way to build a named model, to load and to train it."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from torch import nn

    from rheobase.datasets import Dataset, Split
    from rheobase.snn import SNN

UNTRAINED_METHOD = "robust-norm"
"""Of networks that were trained for no method."""


def build(model: str, classes: int) -> "nn.Module":
    """A network: built in, trained already, a user's own, or read from an ONNX file."""
    from rheobase import models

    if model.endswith(".onnx"):
        from rheobase.onnx import load_onnx

        return load_onnx(model)
    if model in models.catalogue():
        return models.pretrained(model)
    return models.build(model, classes)


def load(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network: built, given the activations it was trained with, and its weights."""
    import rheobase
    from rheobase import checkpoints

    network = build(model, len(dataset.classes))
    if weights is None:
        if _is_fresh(model):
            raise ValueError(
                f"{model} has fresh weights: pass --weights, as `rheobase train {model}` writes them"
            )
        return network.eval()
    _, metadata = checkpoints.read(weights)
    if "method" in metadata:
        network = rheobase.prepare(network, metadata["method"])
    checkpoints.load_weights(network, weights)
    return network.eval()


def load_or_train(model: str, weights: Path | None, dataset: "Dataset") -> "nn.Module":
    """A trained network; where nobody gave weights, one trained as it is, by the recipe of its dataset."""
    import torch

    from rheobase.recipes import find_recipe
    from rheobase.training import train

    if weights is not None or not _is_fresh(model):
        return load(model, weights, dataset)
    network, recipe = build(model, len(dataset.classes)), find_recipe(dataset.name)
    typer.echo(f"no --weights: training {model} on {dataset.name} first, {recipe.epochs} epochs", err=True)
    torch.manual_seed(recipe.seed)
    return train(network, dataset.train, recipe).model


def method_for(model: str, weights: Path | None) -> str:
    """The method a network was trained for; else one that takes any network."""
    from rheobase import checkpoints, models

    if weights is not None:
        return str(checkpoints.read(weights)[1].get("method", UNTRAINED_METHOD))
    return str(models.catalogue().get(model, {}).get("method", UNTRAINED_METHOD))


def load_spiking(path: Path) -> "SNN":
    """A spiking network from a file of this package or a NIR file."""
    import rheobase

    return rheobase.from_nir(path) if path.suffix == ".nir" else rheobase.load(path)


def take(split: "Split", count: int | None) -> "Split":
    """At most so many images of a split, the same ones each time."""
    return split if count is None or count >= len(split) else split.take(count)


def _is_fresh(model: str) -> bool:
    from rheobase import models

    return ":" not in model and not model.endswith(".onnx") and model not in models.catalogue()
