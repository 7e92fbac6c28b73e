"""Integrate-and-fire on a CPU: in place, a block of neurons at a time.

A block's membrane stays in the cache for all steps, so that each current and each spike is transferred once.
With the package llvmlite a compiled program runs, otherwise a few PyTorch operations per step.

Letters: T steps, N all neurons of the batch, M distinct thresholds.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from rheobase.kernels.integrate_fire import llvm
from rheobase.kernels.routines import report_routine

# Smaller blocks spend their time starting operations, larger ones leave the second-level cache (measured with
# benchmarks/streaming_kernels.py --blocks).
BLOCK = 1 << 18


def run(
    current_TN: Tensor,
    membrane_N: Tensor,
    threshold_M: Tensor,
    repeat: int,
    spikes_TN: Tensor,
    *,
    strict: bool,
    reset: str,
    block: int = BLOCK,
) -> None:
    """Fill `spikes_TN` block by block, updating `membrane_N` in place."""
    if llvm.supports(current_TN, membrane_N, spikes_TN):
        report_routine("llvm scan")
        llvm.run(current_TN, membrane_N, threshold_M, repeat, spikes_TN, strict=strict, reset=reset)
        return
    report_routine("torch scan")
    compare = torch.gt if strict else torch.ge
    if spikes_TN.dtype == torch.uint8:
        # The same bits for 0 and 1, and torch converts to signed bytes several times faster.
        spikes_TN = spikes_TN.view(torch.int8)
    direct = spikes_TN.dtype == membrane_N.dtype
    for where, threshold in _blocks(membrane_N.numel(), threshold_M, repeat, block):
        membrane = membrane_N[where]
        buffer = None if direct else torch.empty_like(membrane)
        for current, out in zip(current_TN[:, where].unbind(), spikes_TN[:, where].unbind(), strict=True):
            membrane.add_(current)
            spikes = out if buffer is None else buffer
            compare(membrane, threshold, out=spikes)
            # The product with 0 or 1 is exact, so this equals a selection and is much faster.
            membrane.addcmul_(spikes, threshold if reset == "subtract" else membrane, value=-1)
            if buffer is not None:
                out.copy_(buffer)


def _blocks(neurons: int, threshold_M: Tensor, repeat: int, block: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of neurons, each with its thresholds: one value, or one per neuron of the slice."""
    if threshold_M.numel() == 1:
        for start in range(0, neurons, block):
            yield slice(start, min(start + block, neurons)), threshold_M
        return
    row = threshold_M.repeat_interleave(repeat)
    tile = row.repeat(max(1, min(block, neurons) // row.numel()))
    parts = -(-tile.numel() // block)
    size = -(-tile.numel() // parts)
    for base in range(0, neurons, tile.numel()):
        for offset in range(0, tile.numel(), size):
            start, stop = base + offset, min(base + offset + size, base + tile.numel(), neurons)
            if start < stop:
                yield slice(start, stop), tile[offset : offset + stop - start]
