"""Convolution and integrate-and-fire in one Triton kernel: the matrix accumulator is the membrane.

A program owns a box of output pixels and a block of output channels. It loads their membrane once, adds every
step's matrix products to it, thresholds it in place, writes the spikes and continues with the next step; the
currents are never stored.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns; H and W input
rows and columns. Tensors are channels-last.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import os
from dataclasses import dataclass
from math import inf, prod

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from rheobase.kernels.conv_integrate_fire.dense import flatten_small_image
from rheobase.kernels.conv_integrate_fire.packing import align, count_wide, pack
from rheobase.kernels.conv_integrate_fire.problem import Problem
from rheobase.kernels.conv_integrate_fire.tiles import Tile, cut_pixels, rank_tiles
from rheobase.kernels.conv_integrate_fire.widening import widen

_too_large: set[tuple[torch.device, Tile]] = set()
"""Tiles for which a device has too little shared memory."""


@triton.jit
def _accumulate(
    potential,
    spikes,
    weight,
    image,
    y0,
    x0,
    n0,
    N,
    step_round,
    C: tl.constexpr,
    WIDE_C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    TAPS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    VIA_FLOAT32: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """Add one matrix product to the potential: a tap of the kernel over a block of input channels.

    Channels from WIDE_C on are seen by the middle tap alone, and come last.
    """
    BLOCKS_WIDE: tl.constexpr = (WIDE_C + BLOCK_C - 1) // BLOCK_C
    MIDDLE: tl.constexpr = KERNEL_Y // 2 * KERNEL_X + KERNEL_X // 2
    # Padding in whole strides, so that the divisions below never see a negative number.
    SHIFT_Y: tl.constexpr = (PADDING_Y + STRIDE_Y - 1) // STRIDE_Y
    SHIFT_X: tl.constexpr = (PADDING_X + STRIDE_X - 1) // STRIDE_X
    tap = step_round // BLOCKS_WIDE
    c = step_round % BLOCKS_WIDE * BLOCK_C
    if WIDE_C < C:
        beyond = step_round - TAPS * BLOCKS_WIDE
        tap = tl.where(beyond < 0, tap, MIDDLE)
        c = tl.where(beyond < 0, c, WIDE_C + beyond * BLOCK_C)
    down = tap // KERNEL_X + (SHIFT_Y * STRIDE_Y - PADDING_Y)
    right = tap % KERNEL_X + (SHIFT_X * STRIDE_X - PADDING_X)
    y = y0 + down // STRIDE_Y - SHIFT_Y
    x = x0 + right // STRIDE_X - SHIFT_X
    # Pixels outside the image, and channels past the last, read as zero.
    box = spikes.load([image, y, down % STRIDE_Y, x, right % STRIDE_X * C + c])
    seen = box.reshape(potential.shape[0], BLOCK_C)
    taken = weight.load([tap * N + n0, c])
    if VIA_FLOAT32:
        seen, taken = seen.to(tl.float32), taken.to(tl.float32)
    elif seen.dtype != taken.dtype:
        # A signed byte has a fast conversion.
        seen = seen.to(tl.int8, bitcast=True).to(taken.dtype)
    potential = tl.dot(seen, taken.T, potential, input_precision=PRECISION, out_dtype=potential.dtype)
    if SPLIT:
        rest = weight.load([(TAPS + tap) * N + n0, c])
        if VIA_FLOAT32:
            rest = rest.to(tl.float32)
        potential = tl.dot(seen, rest.T, potential, input_precision=PRECISION, out_dtype=potential.dtype)
    return potential


@triton.jit
def _fire(
    potential,
    bias,
    residual,
    residual_scale,
    residual_step,
    threshold,
    out,
    t,
    b0,
    y0,
    x0,
    n0,
    STRICT: tl.constexpr,
    SUBTRACT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Finish a step: write the spikes and return the potential after the reset."""
    PIXELS: tl.constexpr = BLOCK_B * BLOCK_Y * BLOCK_X
    # Loaded every step: kept across the products they would cost as many registers as the potential.
    n = n0 + tl.arange(0, BLOCK_N)
    theta = tl.load(threshold + n)[None, :]
    potential += tl.load(bias + n)[None, :]
    if RESIDUAL:
        extra = residual.load([t * residual_step, b0, y0, x0, n0]).reshape(PIXELS, BLOCK_N)
        potential += extra.to(potential.dtype) * tl.load(residual_scale + n)[None, :]
    fired = potential > theta if STRICT else potential >= theta
    # Through float32: the interpreter has no other conversion to bfloat16.
    emitted = fired.to(tl.float32).to(out.dtype)
    out.store([t, b0, y0, x0, n0], emitted.reshape(1, BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N))
    return tl.where(fired, potential - theta if SUBTRACT else 0, potential)


# Not compiled again for every size: addresses are computed by descriptors, so nothing would be gained.
@triton.jit(do_not_specialize=["steps", "B", "N", "Y", "X"])
def _conv_integrate_fire(
    spikes,
    weight,
    bias,
    residual,
    residual_scale,
    residual_step,
    membrane,
    gain,
    threshold,
    out,
    steps,
    B,
    N,
    Y,
    X,
    C: tl.constexpr,
    WIDE_C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    STRICT: tl.constexpr,
    SUBTRACT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    VIA_FLOAT32: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_X: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    ONE_LOOP: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles_x = tl.cdiv(X, BLOCK_X)
    tiles_y = tl.cdiv(Y, BLOCK_Y)
    # Programs that read the same spikes run next to each other.
    tile = tl.program_id(0) // tiles_n
    n0 = tl.program_id(0) % tiles_n * BLOCK_N
    x0 = tile % tiles_x * BLOCK_X
    y0 = tile // tiles_x % tiles_y * BLOCK_Y
    b0 = tile // (tiles_x * tiles_y) * BLOCK_B

    TAPS: tl.constexpr = KERNEL_Y * KERNEL_X
    ROUNDS: tl.constexpr = TAPS * ((WIDE_C + BLOCK_C - 1) // BLOCK_C) + (C - WIDE_C + BLOCK_C - 1) // BLOCK_C
    potential = membrane.load([b0, y0, x0, n0]).reshape(BLOCK_B * BLOCK_Y * BLOCK_X, BLOCK_N)
    if SPLIT:
        potential *= tl.load(gain + n0 + tl.arange(0, BLOCK_N))[None, :]
    # fmt: off
    if ONE_LOOP:
        for i in range(steps * ROUNDS):
            t = i // ROUNDS
            potential = _accumulate(
                potential, spikes, weight, t * B + b0, y0, x0, n0, N, i % ROUNDS,
                C, WIDE_C, KERNEL_Y, KERNEL_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X,
                TAPS, SPLIT, PRECISION, VIA_FLOAT32, BLOCK_C,
            )
            if i % ROUNDS == ROUNDS - 1:
                potential = _fire(
                    potential, bias, residual, residual_scale, residual_step, threshold, out,
                    t, b0, y0, x0, n0,
                    STRICT, SUBTRACT, RESIDUAL, BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N,
                )
    else:
        for t in range(steps):
            for i in range(ROUNDS):
                potential = _accumulate(
                    potential, spikes, weight, t * B + b0, y0, x0, n0, N, i,
                    C, WIDE_C, KERNEL_Y, KERNEL_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X,
                    TAPS, SPLIT, PRECISION, VIA_FLOAT32, BLOCK_C,
                )
            potential = _fire(
                potential, bias, residual, residual_scale, residual_step, threshold, out,
                t, b0, y0, x0, n0,
                STRICT, SUBTRACT, RESIDUAL, BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N,
            )
    # fmt: on
    if SPLIT:
        potential /= tl.load(gain + n0 + tl.arange(0, BLOCK_N))[None, :]
    membrane.store([b0, y0, x0, n0], potential.reshape(BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N))


def run(problem: Problem, tile: Tile | None) -> None:
    """Fill `out` in one launch, updating `membrane` in place.

    Args:
        problem: The arguments; the threshold must be one value per channel.
        tile: What a program owns; chosen for the layer if not given.
    """
    p = widen(flatten_small_image(problem))
    B, N = p.spikes.shape[1], len(p.weight)
    Y, X = p.membrane.shape[2:]
    integer = p.membrane.dtype == torch.int32
    images = align((p.spikes.view(torch.int8) if integer else p.spikes).movedim(2, -1))
    membrane, out = p.membrane.movedim(1, -1), p.out.movedim(2, -1)
    state, written = align(membrane), align(out)
    extra = state[None]
    if p.residual is not None:
        extra = align((p.residual if p.residual.dim() == 5 else p.residual[None]).movedim(2, -1))

    C = images.shape[-1]
    weight, gain = pack(p.weight)
    processors = _count_processors(images.device)
    ranked = rank_tiles(weight.dtype, C, N, B * Y * X, processors, p.residual is not None)
    arrays = _Arrays(images, weight, gain, state, extra, written)
    for cut in [tile] if tile else [t for t in ranked if (images.device, t) not in _too_large]:
        try:
            _launch(p, arrays, cut)
            break
        except OutOfResources:  # raised before anything runs
            _too_large.add((images.device, cut))
    else:
        raise RuntimeError(f"{images.device} has too little shared memory for every tile of the fused kernel")
    for result, aligned in ((membrane, state), (out, written)):
        if aligned is not result:
            result.copy_(aligned[..., :N])


@dataclass(frozen=True)
class _Arrays:
    """The tensors in the layout that the kernel needs."""

    images: Tensor
    weight: Tensor
    gain: Tensor | None
    state: Tensor
    extra: Tensor
    written: Tensor


def _launch(p: Problem, a: _Arrays, cut: Tile) -> None:
    T, B, _, _, _ = p.spikes.shape
    N, _, kernel_y, kernel_x = p.weight.shape
    _, _, Y, X = p.membrane.shape
    integer = p.membrane.dtype == torch.int32
    images, weight, gain, state, extra, written = a.images, a.weight, a.gain, a.state, a.extra, a.written
    C = images.shape[-1]
    block_b, block_y, block_x = cut_pixels(cut.pixels, B, Y, X)
    box = [block_b, block_y, block_x, cut.channels]
    programs = prod(-(-size // block) for size, block in zip((B, Y, X, N), box, strict=True))

    def vector(values: Tensor | None, default: float, beyond: float, most: float = inf) -> Tensor:
        """One value per output channel, padded to a multiple of the tile."""
        if values is None:
            return torch.full((N + -N % cut.channels,), default, dtype=state.dtype, device=state.device)
        values = values.to(state.dtype).flatten().contiguous()
        if gain is not None:
            values = (values * gain).clamp(max=most)
        return values if N % cut.channels == 0 else F.pad(values, (0, -N % cut.channels), value=beyond)

    largest = torch.iinfo(torch.int32).max if integer else torch.finfo(torch.float32).max
    residual_scale = p.residual_scale
    if p.residual is not None and residual_scale is None:
        residual_scale = torch.ones(N, dtype=state.dtype, device=state.device)
    threshold = vector(p.threshold.expand(N, 1, 1), largest, largest, largest)
    with torch.cuda.device_of(images):
        _conv_integrate_fire[(programs,)](
            _describe(_fold_stride(images, p.stride), [block_b, block_y, 1, block_x, cut.depth]),
            _describe(weight, [cut.channels, cut.depth]),
            vector(p.bias, 0, 0),
            _describe(extra, [1, *box]),
            threshold if residual_scale is None else vector(residual_scale, 1, 0),
            int(len(extra) > 1),
            _describe(state, box),
            threshold if gain is None else F.pad(gain, (0, -N % cut.channels), value=1),
            threshold,
            _describe(written, [1, *box]),
            T,
            B,
            N,
            Y,
            X,
            C=C,
            WIDE_C=_round_wide(count_wide(p.weight), cut.depth, C),
            KERNEL_Y=kernel_y,
            KERNEL_X=kernel_x,
            STRIDE_Y=p.stride[0],
            STRIDE_X=p.stride[1],
            PADDING_Y=p.padding[0],
            PADDING_X=p.padding[1],
            STRICT=p.strict,
            SUBTRACT=p.reset == "subtract",
            RESIDUAL=p.residual is not None,
            SPLIT=gain is not None,
            PRECISION="ieee",
            VIA_FLOAT32=not integer and os.environ.get("TRITON_INTERPRET") == "1",
            BLOCK_B=block_b,
            BLOCK_Y=block_y,
            BLOCK_X=block_x,
            BLOCK_N=cut.channels,
            BLOCK_C=cut.depth,
            ONE_LOOP=cut.one_loop,
            num_warps=cut.warps,
            num_stages=cut.stages,
            maxnreg=cut.registers,
        )


def _round_wide(channels: int, depth: int, C: int) -> int:
    """Channels that all taps see, rounded up to blocks, at least one block."""
    return min(C, max(1, -(-channels // depth)) * depth)


def _fold_stride(spikes: Tensor, stride: tuple[int, int]) -> Tensor:
    """View (T, B, H, W, C) spikes so that a strided window is a box: (T·B, H/s, s, W/s, s·C)."""
    stride_y, stride_x = stride
    if spikes.shape[2] % stride_y or spikes.shape[3] % stride_x:
        spikes = F.pad(spikes, (0, 0, 0, -spikes.shape[3] % stride_x, 0, -spikes.shape[2] % stride_y))
    T, B, H, W, C = spikes.shape
    return spikes.view(T * B, H // stride_y, stride_y, W // stride_x, stride_x * C)


def _describe(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    # Dimensions of size 1 have arbitrary strides, even in a contiguous tensor: a new view makes them aligned.
    return TensorDescriptor.from_tensor(tensor.view(-1).view(tensor.shape), block)


def _count_processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
