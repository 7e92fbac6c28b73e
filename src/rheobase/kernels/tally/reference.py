"""The definition of counting over time."""

from torch import Tensor


def run(signal: Tensor, fan_out: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Count, as `tally` says."""
    active_TN = (signal != 0).long().sum(1).flatten(1)
    return active_TN.sum(1), None if fan_out is None else (active_TN * fan_out.flatten().long()).sum(1)
