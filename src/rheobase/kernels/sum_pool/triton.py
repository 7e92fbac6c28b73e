"""Pooling by sums in Triton: a program takes a block of the result's pixels and channels.

Letters: R rows, C channels, H and W the image, Y and X the result, M the result's pixels over all rows.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch


@triton.jit(do_not_specialize=["M"])
def _sum_pool(
    counts, out, M, C, H, W, Y, X, SIDE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr
):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (m < M)[:, None] & (c < C)[None, :]
    row, y, x = m // (X * Y), m // X % Y, m % X
    corner = (row * H + y * SIDE) * W + x * SIDE
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    for i in tl.static_range(SIDE):
        for j in tl.static_range(SIDE):
            pixel = (corner + i * W + j) * C
            total += tl.load(counts + pixel[:, None] + c[None, :], mask=inside, other=0).to(tl.float32)
    tl.store(out + (m * C)[:, None] + c[None, :], total.to(out.dtype.element_ty), mask=inside)


def run(counts: Tensor, side: int) -> Tensor:
    """Add up, as `sum_pool` says."""
    images = counts.movedim(1, -1).contiguous()
    R, H, W, C = images.shape
    Y, X = H // side, W // side
    out = images.new_empty(R, Y, X, C)
    M = R * Y * X
    block_c = min(triton.next_power_of_2(C), 128)
    block_m = 4096 // block_c
    with torch.cuda.device_of(images):
        launch(
            _sum_pool,
            (triton.cdiv(M, block_m), triton.cdiv(C, block_c)),
            images,
            out,
            M,
            C,
            H,
            W,
            Y,
            X,
            SIDE=side,
            BLOCK_M=block_m,
            BLOCK_C=block_c,
        )
    return out.movedim(-1, 1)
