"""The definition of the squared errors of rounding.

Letters: C channels, N values of each, K thresholds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def run(values: Tensor, thresholds: Sequence[float], steps: int, unit: float, out: Tensor) -> None:
    """Increase `out`."""
    for threshold, sums_C in zip(thresholds, out, strict=True):
        rounded = (values * (steps / threshold)).clamp_(0, steps).floor_().mul_(threshold / steps)
        error = rounded.sub_(values)
        sums_C += error.square_().mul_(1 / unit).sum(1, dtype=torch.int64)
