"""Signals in memory: moving ones are (T·B, ...), still ones (B, ...).

Shape letters: T steps of a chunk, B batch.
"""

from collections.abc import Callable

import torch
from torch import Tensor, fx

from rheobase.network import memory_format

Signals = dict[fx.Node, Tensor]


def unfold(x: Tensor, T: int) -> Tensor:
    """(T·B, ...) as (T, B, ...)."""
    return x.view(T, -1, *x.shape[1:])


def fold(x_TB: Tensor) -> Tensor:
    """(T, B, ...) as (T·B, ...)."""
    x = x_TB.flatten(0, 1)
    if len(x) > 1:
        return x
    # `view` gives one row a stride of no memory format, and torch would continue in the other one.
    shape, strides = x.shape[1:], x.stride()[1:]
    whole = max((size * stride for size, stride in zip(shape, strides, strict=True)), default=1)
    return x.as_strided(x.shape, (whole, *strides))


def rows(x: Tensor, some: Tensor) -> Tensor:
    """Some rows of a signal, in the signal's memory format."""
    return _copy(x, lambda x: x.index_select(0, some))


def repeat(x: Tensor, T: int) -> Tensor:
    """A still signal as a moving one, in the signal's memory format."""
    return _copy(x, lambda x: x.repeat(T, *[1] * (x.dim() - 1)))


def _copy(x: Tensor, copy: Callable[[Tensor], Tensor]) -> Tensor:
    if memory_format(x) is torch.contiguous_format:
        return copy(x)
    # Of contiguous rows, which are copied as they are.
    return copy(x.movedim(1, -1)).movedim(-1, 1)


def lay_out(signal_TB: Tensor, form: torch.memory_format) -> Tensor:
    """A signal (T, B, ...) with its rows in a memory format."""
    if signal_TB.dim() != 5:
        return signal_TB
    return unfold(fold(signal_TB).contiguous(memory_format=form), len(signal_TB))


def twice(inputs: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
    """The two inputs of a sum; x + x reads one node twice."""
    return (inputs[0], inputs[-1])
