"""A linear layer with few outputs, as at the end of a classifier: no row depends on how many there are.

Letters: R rows, C input features, N outputs.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_dtype, check_shape
from rheobase.kernels.few_outputs import reference

__all__ = ["few_outputs"]


@torch.no_grad()
def few_outputs(x: Tensor, weight: Tensor, bias: Tensor | None, *, backend: str = "auto") -> Tensor:
    """Apply a linear layer; no gradient flows through it.

    Args:
        x: (R, C) float32.
        weight: (N, C) float32.
        bias: (N,) or None.
        backend: `"auto"`, `"reference"` or `"triton"`. The order of a sum depends on it, and only in
            `"triton"` it is the same for any number of rows.

    Returns:
        (R, N) float32.

    Raises:
        TypeError: A dtype is not float32.
        ValueError: A shape does not fit, or the backend cannot run.
    """
    for label, tensor in (("x", x), ("weight", weight)):
        check_dtype(label, tensor, (torch.float32,))
    check_shape("weight", weight, (len(weight), x.shape[1]))
    if choose_backend(x.device, backend, offered=("reference", "triton")) == "reference":
        return reference.run(x, weight, bias)
    from rheobase.kernels.few_outputs import triton

    return triton.run(x.contiguous(), weight.contiguous(), bias)
