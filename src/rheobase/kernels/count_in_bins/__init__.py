"""How many values of each channel lie in each of many bins.

Letters: C channels, P signs, J bins.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape
from rheobase.kernels.count_in_bins import llvm, reference

__all__ = ["count_in_bins"]


@torch.no_grad()
def count_in_bins(
    values: Tensor, edges: Tensor, channels: int | None, out: Tensor, *, backend: str = "auto"
) -> Tensor:
    """Count the values of each channel in bins, negative ones apart.

    A value x lies in bin j if edges[j] ≤ x < edges[j + 1], in the last one if it is not below the last edge,
    and in none if it is below the first. Negative values are counted by their magnitude, or not at all.

    Args:
        values: Floating point, of any shape.
        edges: (J,) of the same dtype, increasing and above zero.
        channels: The dimension of the channels; None to count all values together.
        out: (C, P, J) int32 or int64, contiguous; increased. P is 1, or 2 to count negative values too.
        backend: `"auto"` for the fastest one, or `"reference"` or `"cpu"`. The last falls back to the
            reference unless the values are float32, and no two edges agree in their first 17 bits.

    Returns:
        `out`.

    Raises:
        TypeError: The edges or `out` are of another dtype.
        ValueError: Shapes do not fit, or the backend cannot run.
    """
    check_dtype("edges", edges, (values.dtype,))
    check_dtype("out", out, (torch.int32, torch.int64))
    signs = 2 if out.dim() == 3 and out.shape[1] == 2 else 1
    check_shape("out", out, (1 if channels is None else values.shape[channels], signs, len(edges)))
    name = choose_backend(values.device, backend, offered=("reference", "cpu"))
    if not values.numel():
        return out
    if name == "cpu" and llvm.supports(values, edges):
        llvm.run(values, edges, channels, out)
    else:
        reference.run(values, edges, channels, out)
    return out
