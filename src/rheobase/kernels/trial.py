"""A small Triton kernel that shows whether a device runs any."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _double(values, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(values + n, 2 * tl.load(values + n))


def double(values: Tensor) -> None:
    """Double a power of two of values."""
    with torch.cuda.device_of(values):
        _double[(1,)](values, N=len(values))
