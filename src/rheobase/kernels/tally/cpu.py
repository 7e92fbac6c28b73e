"""Counting over time on a CPU: bytes are added eight at a time.

Letters: T steps, B batch, N values of a sample.
"""

import torch
from torch import Tensor

# The number of zeros and ones whose sum fits into a byte.
_MOST = 255
# Single precision holds all integers up to this one.
_EXACT = 1 << 24


def run(signal: Tensor, fan_out: Tensor | None, binary: bool) -> tuple[Tensor, Tensor | None]:
    """Count, as `tally` says."""
    if signal.dim() == 5 and signal.flatten(0, 1).is_contiguous(memory_format=torch.channels_last):
        signal = signal.movedim(2, -1)
        fan_out = None if fan_out is None else fan_out.movedim(0, -1)
    active_TBN = (signal if binary else signal != 0).reshape(*signal.shape[:2], -1)
    if active_TBN.dtype == torch.bool:
        active_TBN = active_TBN.view(torch.uint8)
    if fan_out is None and active_TBN.dtype == torch.float32 and active_TBN[0].numel() < _EXACT:
        return active_TBN.flatten(1).sum(1).long(), None
    # Sums over the batch are integers below 2^24, and so exact in single precision.
    active_TN = (
        _add_bytes(active_TBN) if _fits(active_TBN) else active_TBN.sum(1, dtype=torch.float32)
    ).double()
    reached = None if fan_out is None else (active_TN @ fan_out.flatten().double()).round().long()
    return active_TN.sum(1).long(), reached


def _fits(active_TBN: Tensor) -> bool:
    return active_TBN.dtype == torch.uint8 and active_TBN.is_contiguous() and active_TBN.shape[2] % 8 == 0


def _add_bytes(active_TBN: Tensor) -> Tensor:
    words_TBN = active_TBN.view(torch.int64)
    parts = [part.sum(1).view(torch.uint8) for part in torch.split(words_TBN, _MOST, dim=1)]
    total = parts[0].float()
    for part in parts[1:]:
        total += part
    return total
