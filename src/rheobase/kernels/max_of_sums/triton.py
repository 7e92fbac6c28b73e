"""Changes of maxima of sums in Triton: a program takes some values of the result over all steps.

The sums of its windows stay in registers. Windows may overlap, so that the total is updated apart.

Letters: T steps, B batch, C channels, H and W the image, Y and X the result.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

_BLOCK, _STRETCH = 256, 1024


@triton.jit(do_not_specialize=["T", "B", "H", "W", "Y", "X"])
def _max_of_sums(
    counts,
    total,
    out,
    T,
    B,
    H,
    W,
    Y,
    X,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    c, pixel = n % C, n // C
    x, y, b = pixel % X, pixel // X % Y, pixel // (X * Y)
    tap = tl.arange(0, TAPS)[:, None]
    row = (y * STRIDE_Y - PADDING_Y)[None, :] + tap // COLUMNS
    column = (x * STRIDE_X - PADDING_X)[None, :] + tap % COLUMNS
    inside = (tap < ROWS * COLUMNS) & (row >= 0) & (row < H) & (column >= 0) & (column < W) & (b < B)[None, :]
    place = ((b * H)[None, :] + row) * W * C + column * C + c[None, :]
    sums = tl.load(total + place, mask=inside, other=-1e38)  # below every sum
    highest = tl.max(sums, 0)
    for _ in range(T):
        sums += tl.load(counts + place, mask=inside, other=0).to(tl.float32)
        now = tl.max(sums, 0)
        tl.store(out + n, (now - highest).to(out.dtype.element_ty), mask=b < B)
        highest = now
        counts += B * H * W * C
        out += B * Y * X * C


@triton.jit(do_not_specialize=["T"])
def _add_steps(counts, total, T, N, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    added = tl.zeros((BLOCK,), tl.float32)
    for _ in range(T):
        added += tl.load(counts + n, mask=n < N, other=0).to(tl.float32)
        counts += N
    tl.store(total + n, tl.load(total + n, mask=n < N) + added, mask=n < N)


def run(
    counts: Tensor, total: Tensor, window: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Compute, as `max_of_sums` says."""
    images, before = counts.movedim(2, -1).contiguous(), total.movedim(1, -1).contiguous()
    T, B, H, W, C = images.shape
    Y, X = (
        (size + 2 * p - k) // s + 1 for size, k, s, p in zip((H, W), window, stride, padding, strict=True)
    )
    out = images.new_empty(T, B, Y, X, C)
    with torch.cuda.device_of(images):
        launch(
            _max_of_sums,
            (triton.cdiv(B * Y * X * C, _BLOCK),),
            images,
            before,
            out,
            T,
            B,
            H,
            W,
            Y,
            X,
            C=C,
            ROWS=window[0],
            COLUMNS=window[1],
            STRIDE_Y=stride[0],
            STRIDE_X=stride[1],
            PADDING_Y=padding[0],
            PADDING_X=padding[1],
            TAPS=triton.next_power_of_2(window[0] * window[1]),
            BLOCK=_BLOCK,
            num_warps=1,  # the maximum of a window is then taken within a thread
        )
        N = B * H * W * C
        launch(_add_steps, (triton.cdiv(N, _STRETCH),), images, before, T, N, BLOCK=_STRETCH)
    if before.data_ptr() != total.data_ptr():
        total.copy_(before.movedim(-1, 1))
    return out.movedim(-1, 2)
