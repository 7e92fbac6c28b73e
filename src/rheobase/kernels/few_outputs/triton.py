"""A linear layer with few outputs in Triton: a program computes all outputs of some rows, block by block.

Libraries cut such a product into few parts, which leaves most of a GPU idle.

Letters: R rows, C input features, N outputs.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

# The order of a sum depends on these and on the layer, not on the number of rows.
_ROWS, _BLOCK = 16, 64


@triton.jit(do_not_specialize=["R"])
def _few_outputs(
    x, weight, bias, out, R, N, C,
    BIAS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, OUTPUTS)
    total = tl.zeros((ROWS, OUTPUTS), tl.float32)
    for begin in range(0, C, BLOCK):
        c = begin + tl.arange(0, BLOCK)
        inside = (c < C)[None, :]
        seen = tl.load(x + r[:, None] * C + c[None, :], mask=(r < R)[:, None] & inside, other=0.0)
        taken = tl.load(weight + n[:, None] * C + c[None, :], mask=(n < N)[:, None] & inside, other=0.0)
        total = tl.dot(seen, taken.T, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0)[None, :]
    tl.store(out + r[:, None] * N + n[None, :], total, mask=(r < R)[:, None] & (n < N)[None, :])


def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute, as `few_outputs` says."""
    (R, C), N = x.shape, len(weight)
    out = torch.empty(R, N, dtype=torch.float32, device=x.device)
    if out.numel():
        with torch.cuda.device_of(x):
            launch(
                _few_outputs,
                (triton.cdiv(R, _ROWS),),
                x,
                weight,
                x if bias is None else bias,
                out,
                R,
                N,
                C,
                BIAS=bias is not None,
                ROWS=_ROWS,
                OUTPUTS=max(16, triton.next_power_of_2(N)),
                BLOCK=_BLOCK,
                num_warps=2,
            )
    return out
