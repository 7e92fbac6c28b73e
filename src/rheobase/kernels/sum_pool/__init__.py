"""Sums over the windows of an average pooling, on signals kept as counts.

Letters: R rows (steps and samples), C channels, H and W the image, Y and X the result.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.sum_pool import reference

__all__ = ["sum_pool"]


@torch.no_grad()
def sum_pool(counts: Tensor, side: int, *, backend: str = "auto") -> Tensor:
    """Add up counts over square windows that touch but do not overlap.

    Args:
        counts: (R, C, H, W) uint8, float16 or float32; a sum must not exceed what the dtype holds exactly.
        side: Rows and columns of a window. What does not fill a window is left out.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        (R, C, H // side, W // side) of the same dtype, channels last where the counts are.

    Raises:
        ValueError: A window does not fit into the image, or the backend cannot run.
    """
    if counts.dim() != 4 or side < 1 or min(counts.shape[2:]) < side:
        raise ValueError(f"windows of {side} × {side} do not fit into counts of shape {tuple(counts.shape)}")
    if choose_backend(counts.device, backend, offered=("reference", "triton")) == "reference":
        return reference.run(counts, side)
    from rheobase.kernels.sum_pool import triton

    return triton.run(counts, side)
