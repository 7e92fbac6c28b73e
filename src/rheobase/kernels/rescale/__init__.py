"""What the totals of a product of counts stand for."""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape
from rheobase.kernels.rescale import reference

__all__ = ["rescale"]


@torch.no_grad()
def rescale(
    total: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    added: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Tensor:
    """Compute total · scale + bias + added, the product and the sums rounded one by one.

    Args:
        total: Of any shape, int32 or floating point. Its memory may be used for the result.
        scale: Broadcasts against the totals.
        bias: In the shape of the scale, or None.
        added: In the shape of the totals, or None.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        The result in the shape of the totals and in the precision of the scale.

    Raises:
        TypeError: The totals are neither int32 nor in the precision of the scale.
        ValueError: The bias has another shape than the scale, or what is added than the totals, or the
            backend cannot run.
    """
    check_dtype("total", total, (torch.int32, scale.dtype))
    if bias is not None and bias.shape != scale.shape:
        raise ValueError(f"the bias has shape {tuple(bias.shape)}, expected the scale's {tuple(scale.shape)}")
    if added is not None:
        check_shape("added", added, tuple(total.shape))
    along = sum(size > 1 for size in scale.shape)
    name = choose_backend(total.device, backend, offered=("reference", "triton"))
    dense = all(x.is_contiguous() for x in (total, added) if x is not None)
    if name == "reference" or scale.dtype != torch.float32 or along > 1 or not dense:
        return reference.run(total, scale, bias, added)
    from rheobase.kernels.rescale import triton

    return triton.run(total, scale, bias, added)
