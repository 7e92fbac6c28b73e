"""The statistics of a batch norm."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Statistics:
    """What a batch norm keeps over its batches; all of it is updated.

    Attributes:
        mean: (C,) float32.
        variance: (C,) float32, unbiased.
        batches: () int64: how many there were.
        momentum: The share of a new batch.
        epsilon: Added to the variance of a batch.
        counters: (C + 1,) int32, zero before and after every call: how many programs are done.
    """

    mean: Tensor
    variance: Tensor
    batches: Tensor
    momentum: float
    epsilon: float
    counters: Tensor
