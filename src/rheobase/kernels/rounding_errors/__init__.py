"""The squared errors of activations that are rounded down to few levels, for many thresholds at once.

Letters: C channels, N values of each, K thresholds.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape
from rheobase.kernels.rounding_errors import llvm, reference

__all__ = ["rounding_errors"]


@torch.no_grad()
def rounding_errors(
    values: Tensor,
    thresholds: Sequence[float],
    steps: int,
    *,
    unit: float,
    out: Tensor,
    backend: str = "auto",
) -> Tensor:
    """Add up, by channel and threshold θ, the squares of (θ/T)·floor(clip(a·T/θ, 0, T)) − a.

    Args:
        values: a, (C, N) float64.
        thresholds: θ.
        steps: T, the levels.
        unit: Each square is truncated to a multiple of it, so that no order of summation matters.
        out: Multiples of the unit, (K, C) int64, increased.
        backend: `"auto"` for the fastest one, or `"reference"` or `"cpu"`.

    Returns:
        `out`.

    Raises:
        TypeError: The values or `out` are of another dtype.
        ValueError: Shapes do not fit, or the backend cannot run.
    """
    check_dtype("values", values, (torch.float64,))
    check_dtype("out", out, (torch.int64,))
    check_shape("out", out, (len(thresholds), len(values)))
    name = choose_backend(values.device, backend, offered=("reference", "cpu"))
    if values.numel():
        (llvm if name == "cpu" else reference).run(values, thresholds, steps, unit, out)
    return out
