"""Signals in memory: moving ones are (T·B, ...), still ones (B, ...).

Shape letters: T steps of a chunk, B batch.
"""

from torch import Tensor, fx

from rheobase.simulation.batch_invariant import memory_format

Signals = dict[fx.Node, Tensor]


def unfold(x: Tensor, T: int) -> Tensor:
    """(T·B, ...) as (T, B, ...)."""
    return x.view(T, -1, *x.shape[1:])


def rows(x: Tensor, stay: Tensor) -> Tensor:
    """Some samples of a signal, in the signal's memory format."""
    return x[stay].contiguous(memory_format=memory_format(x))


def repeat(x: Tensor, T: int) -> Tensor:
    """A still signal as a moving one."""
    return x.expand(T, *x.shape).flatten(0, 1)


def twice(inputs: tuple[fx.Node, ...]) -> tuple[fx.Node, fx.Node]:
    """The two inputs of a sum; x + x reads one node twice."""
    return (inputs[0], inputs[-1])
