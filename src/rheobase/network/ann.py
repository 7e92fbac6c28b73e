"""What the package asks of an ANN: device and precision, evaluation mode, its answer, one score per class."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn


def find_like(model: nn.Module) -> Tensor:
    """A tensor with a model's device and precision: its first one of floating point, if it has any."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return next((tensor for tensor in tensors if tensor.is_floating_point()), torch.empty(()))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of every part afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def answer_of(outputs: Any) -> Any:
    """What a model answers, given what it returns.

    Entries that are None do not count. One tensor in a container is the answer. Of the named outputs of a
    Hugging Face model, a dictionary that is a dataclass, the logits are; the others are intermediate results.

    Returns:
        The answer, or several of them in a container.
    """
    if isinstance(outputs, dict):
        named = {name: value for name, value in outputs.items() if value is not None}
        if "logits" in named and is_dataclass(type(outputs)):
            return named["logits"]
        return next(iter(named.values())) if len(named) == 1 else named
    if isinstance(outputs, (tuple, list)):
        given = [value for value in outputs if value is not None]
        return given[0] if len(given) == 1 else outputs if len(given) == len(outputs) else given
    return outputs


def classes_of(logits: Tensor, *, by_step: bool = False) -> Tensor:
    """The class that each output (B, K) names, or each of several steps, (S, B, K).

    Raises:
        ValueError: The outputs are not class scores, so that accuracy and agreement mean nothing.
    """
    single = isinstance(logits, Tensor)
    if not single or logits.dim() != 2 + by_step or logits.shape[-1] < 2:
        found = f"have shape {tuple(logits.shape)}" if single else f"are a {type(logits).__name__}"
        raise ValueError(
            f"the network's outputs {found}: accuracy and agreement need one score "
            'for each of at least two classes. For other outputs, use rheobase.evaluate(…, metric="mse")'
        )
    return logits.argmax(-1)


def require_labels(labels: Tensor, outputs: int) -> None:
    """Refuse labels that a network with so many outputs has none for."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs:
        raise ValueError(
            f"the labels run from {low} to {high}, but the network has {outputs} outputs: labels must lie in "
            f"0…{outputs - 1}; build it with classes={high + 1} for more"
        )


def require_classes(logits: object, images: Tensor) -> None:
    """Refuse outputs other than one score per class; labels would be broadcast over them without an error."""
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(images):
        raise ValueError(f"the output is {found}, expected one score per class: ({len(images)}, classes)")
