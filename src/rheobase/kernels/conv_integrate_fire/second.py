"""A second input of a convolution, whose channels come behind those of the first.

Letters: T steps, B batch, C input channels, H and W input rows and columns.
"""

from dataclasses import replace

import torch
from torch import Tensor

from rheobase.kernels.conv_integrate_fire.packing import count_wide
from rheobase.kernels.conv_integrate_fire.problem import Layer, is_channels_last
from rheobase.kernels.conv_integrate_fire.tiles import choose_depth


def join_channels(first_TB: Tensor, second: Tensor) -> Tensor:
    """Both inputs as one, channels-last in memory; the second may be (B, ...), the same at every step."""
    first, behind = first_TB.movedim(2, -1), second.movedim(-3, -1)
    return torch.cat([first, behind.expand(*first.shape[:-1], -1)], -1).movedim(-1, 2)


def join(problem: Layer) -> Layer:
    """Return the same problem with one input."""
    p = problem
    return p if p.second is None else replace(p, spikes=join_channels(p.spikes, p.second), second=None)


def reads_apart(weight: Tensor, first: tuple[int, ...], item: int, depth: int | None = None) -> bool:
    """Whether the Triton kernel can read a second input where it is, given both channels-last in memory.

    Args:
        weight: The weights for the channels of both.
        first: (C, H, W) of the first input.
        item: The bytes of a count.
        depth: Input channels of one matrix product, if they are given.
    """
    kind = torch.float16 if weight.dtype == torch.float32 else weight.dtype  # as `pack` makes it
    _, channels, rows, columns = weight.shape
    C, H, W = first
    blocks = C % (depth or choose_depth(kind, channels)) == 0 and (channels - C) * item % 16 == 0
    # A smaller image becomes one pixel of many channels.
    large = rows * columns <= H * W
    return blocks and large and (rows * columns == 1 or count_wide(weight) <= C)


def separate(problem: Layer, depth: int | None) -> Layer:
    """Return the problem as it is if the kernel can read its second input, else with one input."""
    p = problem
    if p.second is None or p.second.dim() != 5 or p.stride != (1, 1) or not is_channels_last(p.spikes):
        return join(p)
    apart = reads_apart(p.weight, tuple(p.spikes.shape[2:]), p.spikes.itemsize, depth)
    return p if apart and _is_regular(p.second) else join(p)


def view_second(second: Tensor) -> Tensor:
    """View pixels of (T, B, C, H, W) at any stride as the kernel reads them: (T·B, H, 1, W, C)."""
    T, B, C, H, W = second.shape
    _, _, _, row, column = second.stride()
    return second.as_strided((T * B, H, 1, W, C), (_step(second), row, row, column, 1))


def _step(second: Tensor) -> int:
    """The distance of samples in memory."""
    return second.stride(1 if second.shape[1] > 1 else 0)


def _is_regular(second: Tensor) -> bool:
    """Whether it can be described: channels last, samples at one distance, all in multiples of 16 bytes."""
    T, B = second.shape[:2]
    step, (_, _, channel, row, column) = _step(second), second.stride()
    even = all(distance * second.itemsize % 16 == 0 for distance in (step, row, column))
    return channel == 1 and even and second.data_ptr() % 16 == 0 and (T == 1 or second.stride(0) == B * step)
