"""Counts that follow targets on a CPU: by a compiled program, where it supports the tensors.

Letters: T steps, B batch.
"""

import torch
from torch import Tensor

from rheobase.kernels.follow import llvm, reference
from rheobase.kernels.follow.layout import flatten_targets, in_order


def run(
    target: Tensor, count: Tensor, sizes: int | None, out: Tensor | None, fan_out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Move and count, as `follow` says."""
    ordered, results = in_order(count, count), None if out is None else in_order(count, out)
    dense = ordered.is_contiguous() and (results is None or results.is_contiguous())
    if not dense or not llvm.supports(target, count, out, fan_out):
        return reference.run(target, count, sizes, out, fan_out)
    events = torch.zeros(target.shape[:2], dtype=torch.int64, device="cpu")
    reached = None if fan_out is None else torch.zeros_like(events)
    synapses = None if fan_out is None else in_order(count, fan_out).flatten().contiguous()
    target_TBN = flatten_targets(count, target)
    llvm.run(target_TBN, ordered.flatten(1), sizes, results, synapses, events, reached)
    return events, reached
