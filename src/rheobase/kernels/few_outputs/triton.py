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
_SUMS, _BLOCK = 64, 64


@triton.jit(do_not_specialize=["R"])
def _few_outputs(
    x, weight, bias, out, R, N, C,
    BIAS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, OUTPUTS)
    some, own = (r < R)[None, :, None], (n < N)[:, None, None]
    # One sum for each output, row and place in a block, added up at the end.
    parts = tl.zeros((OUTPUTS, ROWS, BLOCK), tl.float32)
    for begin in range(0, C, BLOCK):
        c = (begin + tl.arange(0, BLOCK))[None, None, :]
        seen = tl.load(x + (r * C)[None, :, None] + c, mask=some & (c < C), other=0.0)
        taken = tl.load(weight + (n * C)[:, None, None] + c, mask=own & (c < C), other=0.0)
        parts = tl.fma(seen, taken, parts)
    total = tl.sum(parts, 2)
    if BIAS:
        total += tl.load(bias + n, mask=n < N, other=0.0)[:, None]
    tl.store(out + (r * N)[None, :] + n[:, None], total, mask=(r < R)[None, :] & (n < N)[:, None])


def run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute, as `few_outputs` says."""
    (R, C), N = x.shape, len(weight)
    out = torch.empty(R, N, dtype=torch.float32, device=x.device)
    outputs = max(4, triton.next_power_of_2(N))
    rows = max(1, _SUMS // outputs)
    if out.numel():
        with torch.cuda.device_of(x):
            launch(
                _few_outputs,
                (triton.cdiv(R, rows),),
                x,
                weight,
                x if bias is None else bias,
                out,
                R,
                N,
                C,
                BIAS=bias is not None,
                ROWS=rows,
                OUTPUTS=outputs,
                BLOCK=_BLOCK,
                num_warps=1,
            )
    return out
