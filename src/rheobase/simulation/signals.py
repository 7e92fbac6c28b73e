"""Signals in memory: moving ones are (T·B, ...), still ones (B, ...).

Shape letters: T steps of a chunk, B batch.
"""

import torch
from torch import Tensor, fx

from rheobase.network import memory_format

Signals = dict[fx.Node, Tensor]


def unfold(x: Tensor, T: int) -> Tensor:
    """(T·B, ...) as (T, B, ...)."""
    return x.view(T, -1, *x.shape[1:])


def rows(x: Tensor, some: Tensor) -> Tensor:
    """Some rows of a signal, in the signal's memory format."""
    if memory_format(x) is torch.contiguous_format:
        return x.index_select(0, some)
    # Of contiguous rows, which are copied as they are.
    return x.movedim(1, -1).index_select(0, some).movedim(-1, 1)


def repeat(x: Tensor, T: int) -> Tensor:
    """A still signal as a moving one."""
    return x.expand(T, *x.shape).flatten(0, 1)


def twice(inputs: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
    """The two inputs of a sum; x + x reads one node twice."""
    return (inputs[0], inputs[-1])
