"""Max-pooling of the sums of a signal over time, as changes from step to step.

Letters: T steps, B batch, C channels, H and W the image, Y and X the result.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape
from rheobase.kernels.max_of_sums import reference

__all__ = ["max_of_sums"]

Pair = tuple[int, int]


@torch.no_grad()
def max_of_sums(
    counts: Tensor, total: Tensor, window: Pair, stride: Pair, padding: Pair, *, backend: str = "auto"
) -> Tensor:
    """Add a signal to a total step by step, and find by how much the maximum of each window changes.

    Args:
        counts: (T, B, C, H, W): integers of any dtype, or floating-point numbers that are integers.
        total: (B, C, H, W) float32: the sum over earlier steps, exact. Updated in place.
        window: Rows and columns of a window.
        stride: As in `torch.nn.functional.max_pool2d`.
        padding: As in `torch.nn.functional.max_pool2d`.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        (T, B, C, Y, X) of the dtype of `counts`, channels-last for Triton: the maximum of the total up to
        each step, less that of the step before.

    Raises:
        TypeError: The total is not float32.
        ValueError: Shapes do not fit, or the backend cannot run.
    """
    check_dtype("total", total, (torch.float32,))
    check_shape("total", total, tuple(counts.shape[1:]))
    if choose_backend(counts.device, backend, offered=("reference", "triton")) == "reference":
        return reference.run(counts, total, window, stride, padding)
    from rheobase.kernels.max_of_sums import triton

    return triton.run(counts, total, window, stride, padding)
