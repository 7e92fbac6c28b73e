"""Counts and targets as flat samples in the order of memory.

Letters: T steps, B batch, N values of a sample.
"""

import torch
from torch import Tensor


def in_order(count: Tensor, x: Tensor) -> Tensor:
    """View samples in the order of the counts' memory: channels last, or the last two dimensions swapped."""
    if count.dim() == 4 and count.is_contiguous(memory_format=torch.channels_last):
        return x.movedim(-3, -1)
    swapped = count.dim() > 2 and not count.is_contiguous() and count.mT.is_contiguous()
    return x.mT if swapped else x


def flatten_targets(count: Tensor, target: Tensor) -> Tensor:
    """View targets as (T, B, N); one target for all steps stays one in memory."""
    ordered = in_order(count, target)
    if target.stride(0) == 0 and len(target) > 0:
        return ordered[0].flatten(1).contiguous().expand(len(target), -1, -1)
    return ordered.flatten(2).contiguous()
