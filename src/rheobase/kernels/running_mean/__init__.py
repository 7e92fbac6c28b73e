"""The mean of a signal of counts up to every step.

Letters: T steps, B batch.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape
from rheobase.kernels.running_mean import cpu, reference

__all__ = ["running_mean"]


@torch.no_grad()
def running_mean(
    signal: Tensor, total: Tensor, before: int, *, unit: float = 1.0, backend: str = "auto"
) -> Tensor:
    """Add a signal to a total step by step, and divide by the number of steps so far.

    Args:
        signal: (T, B, ...): integers of any dtype, or floating-point numbers that are integers.
        total: (B, ...) in the signal's memory format, float32 or float64: the sum over earlier steps.
            Updated in place. It must be exact, so that the order of sums does not matter.
        before: The number of earlier steps.
        unit: What one count stands for.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

    Returns:
        (T, B, ...) of the total's dtype: for each step the total up to it / the number of steps · unit.

    Raises:
        TypeError: The total is not floating point.
        ValueError: Shapes do not fit, or the backend cannot run.
    """
    check_dtype("total", total, (torch.float32, torch.float64))
    check_shape("total", total, tuple(signal.shape[1:]))
    name = choose_backend(signal.device, backend)
    if name == "cpu":
        return cpu.run(signal, total, before, unit)
    if name == "reference" or total.dtype != torch.float32:
        return reference.run(signal, total, before, unit)
    from rheobase.kernels.running_mean import triton

    return triton.run(signal, total, before, unit)
