"""Counts that follow targets on a CPU: some samples at a time, whose counts stay in the cache.

Letters: T steps, B batch, N values of a sample.
"""

import torch
from torch import Tensor

from rheobase.kernels.follow import llvm
from rheobase.kernels.follow.layout import flatten_targets, in_order

# Counts at a time, in single precision.
_PIECE = 1 << 16
# The bits of a number in single precision that hold its sign and its power of two.
_POWER = -(1 << 23)


def run(
    target: Tensor, count: Tensor, sizes: int | None, out: Tensor | None, fan_out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Move and count, as `follow` says."""
    T, B = target.shape[:2]
    events = torch.zeros(T, B, dtype=torch.int64)
    reached = None if fan_out is None else torch.zeros_like(events)
    ordered = in_order(count, count)
    counts_BN, target_TBN = ordered.flatten(1), flatten_targets(count, target)
    results = None if out is None else in_order(count, out)
    dense = ordered.is_contiguous() and (results is None or results.is_contiguous())
    if dense and llvm.supports(target_TBN, counts_BN, results, fan_out):
        flat = None if fan_out is None else in_order(count, fan_out).flatten()
        llvm.run(target_TBN, counts_BN, sizes, results, flat, events, reached)
        return events, reached
    synapses = None if fan_out is None else in_order(count, fan_out).flatten().double()
    samples = max(1, _PIECE // max(1, counts_BN.shape[1]))
    for begin in range(0, B, samples):
        some = slice(begin, begin + samples)
        counts = counts_BN[some]
        if sizes is not None:
            counts = counts.to(torch.float32, copy=True)
        for t in range(T):
            wanted = target_TBN[t, some]
            if sizes is None:
                changed = wanted != counts
                counts = wanted
            else:
                difference = _single(wanted) - counts
                event = difference.view(torch.int32).bitwise_and_(_POWER).view(torch.float32)
                counts += event.clamp_(-(2.0 ** (sizes - 1)), 2.0 ** (sizes - 1))
                changed = event != 0
            events[t, some] = changed.count_nonzero(1)
            if reached is not None and synapses is not None:
                reached[t, some] = (changed.double() @ synapses).long()
            if results is not None:
                results[t, some].copy_(counts.view(results[t, some].shape))
        ordered[some].copy_(counts.view(ordered[some].shape))
    return events, reached


def _single(counts: Tensor) -> Tensor:
    """Counts whose difference to others is in single precision."""
    if counts.dtype == torch.uint8:
        return counts.view(torch.int8)  # the same up to 127, and torch converts it several times faster
    return counts.float()
