"""The definition of counting over time."""

import torch
from torch import Tensor


def run(signal: Tensor, fan_out: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Count, as `tally` says."""
    active_TBN = (signal != 0).flatten(2)
    # Sums over the batch are whole numbers below 2^24, and so exact in single precision.
    active_TN = active_TBN.sum(1, dtype=torch.float32).double()
    spikes = active_TN.sum(1).long()
    return spikes, None if fan_out is None else (active_TN @ fan_out.flatten().double()).round().long()
