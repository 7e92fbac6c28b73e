"""What totals stand for in Triton, in one pass that writes over them."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

BLOCK, WARPS = 1024, 4


@triton.jit(do_not_specialize=["pieces"])
def _rescale(
    total, out, scale, bias, added, pieces, C, inner,
    SHIFTED: tl.constexpr, ADDED: tl.constexpr, WIDE: tl.constexpr, PIECE: tl.constexpr,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # As a product, so that the compiler knows what the size is a multiple of.
    size = pieces.to(tl.int64) * PIECE
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    inside = i < size
    start = tl.multiple_of((first % (C * inner)).to(tl.int32), ALIGNED)
    place = start + tl.arange(0, BLOCK)
    y = tl.load(total + i, mask=inside, other=0).to(tl.float32)
    if WIDE:  # a program meets two channels at most
        begin = start // inner
        end = (begin + 1) % C
        early = place < (begin + 1) * inner
        y = y * tl.where(early, tl.load(scale + begin), tl.load(scale + end))
        if SHIFTED:
            y = y + tl.where(early, tl.load(bias + begin), tl.load(bias + end))
    else:
        channel = place // inner % C
        y = y * tl.load(scale + channel)
        if SHIFTED:
            y = y + tl.load(bias + channel)
    if ADDED:
        y = y + tl.load(added + i, mask=inside, other=0)
    tl.store(out + i, y, mask=inside)


def run(total: Tensor, scale: Tensor, bias: Tensor | None, added: Tensor | None) -> Tensor:
    """Compute, as `rescale` says, of contiguous totals and scales along one dimension."""
    out = total.view(torch.float32)
    if not total.numel():
        return out
    after = len(scale.shape) - next((d for d, size in enumerate(scale.shape) if size > 1), 0)
    inner = math.prod(total.shape[total.dim() - after + 1 :]) if scale.numel() > 1 else 1
    piece = math.gcd(total.numel(), 16)
    with torch.cuda.device_of(total):
        launch(
            _rescale,
            (triton.cdiv(total.numel(), BLOCK),),
            total,
            out,
            scale.contiguous(),
            scale if bias is None else bias.contiguous(),
            out if added is None else added,
            total.numel() // piece,
            scale.numel(),
            inner,
            SHIFTED=bias is not None,
            ADDED=added is not None,
            WIDE=inner >= BLOCK,
            PIECE=piece,
            ALIGNED=math.gcd(scale.numel() * inner, 16),
            BLOCK=BLOCK,
            num_warps=WARPS,
            enable_fp_fusion=False,  # a product and a sum are rounded one by one, as elsewhere
        )
    return out
