"""Convolution and neurons in one Triton kernel: the matrix accumulator is the membrane.

A program owns a box of output pixels and a block of output channels. It loads their membrane once, adds every
step's matrix products to it, thresholds it in place, writes the spikes and continues with the next step; the
currents are never stored. To quantise, every step starts at zero and writes counts instead of spikes.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns; H and W input
rows and columns. Tensors are channels-last.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import os
from dataclasses import dataclass, replace
from math import inf, prod

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.tools.tensor_descriptor import TensorDescriptor

from rheobase.kernels.conv_integrate_fire.dense import flatten_small_image
from rheobase.kernels.conv_integrate_fire.packing import align, count_wide, group_synapses, pack
from rheobase.kernels.conv_integrate_fire.parts import accumulate, fire, load_synapses
from rheobase.kernels.conv_integrate_fire.problem import Convolution, Problem, Quantisation
from rheobase.kernels.conv_integrate_fire.second import separate, view_second
from rheobase.kernels.conv_integrate_fire.tiles import Tile, cut_pixels, rank_tiles, standard_batch
from rheobase.kernels.conv_integrate_fire.widening import widen
from rheobase.kernels.launching import launch

_too_large: set[tuple[torch.device, Tile]] = set()
"""Tiles for which a device has too little shared memory."""


# Not compiled again for every size: addresses are computed by descriptors, so nothing would be gained.
@triton.jit(
    do_not_specialize=["residual_step", "steps", "B", "N", "Y", "X"],
    do_not_specialize_on_alignment=["totals", "reached"],
)
def _conv_integrate_fire(
    spikes,
    second,
    weight,
    bias,
    residual,
    residual_scale,
    residual_step,
    membrane,
    gain,
    threshold,
    high,
    out,
    totals,
    reached,
    table,
    steps,
    B,
    N,
    Y,
    X,
    C: tl.constexpr,
    WIDE_C: tl.constexpr,
    SECOND_C: tl.constexpr,
    KERNEL_Y: tl.constexpr,
    KERNEL_X: tl.constexpr,
    STRIDE_Y: tl.constexpr,
    STRIDE_X: tl.constexpr,
    PADDING_Y: tl.constexpr,
    PADDING_X: tl.constexpr,
    STRICT: tl.constexpr,
    SUBTRACT: tl.constexpr,
    QUANTISE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    COUNT: tl.constexpr,
    ALIKE: tl.constexpr,
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
    NARROW_C: tl.constexpr = C + SECOND_C - WIDE_C
    ROUNDS: tl.constexpr = TAPS * ((WIDE_C + BLOCK_C - 1) // BLOCK_C) + (NARROW_C + BLOCK_C - 1) // BLOCK_C
    if QUANTISE:
        potential = tl.zeros((BLOCK_B * BLOCK_Y * BLOCK_X, BLOCK_N), threshold.dtype.element_ty)
    else:
        potential = membrane.load([b0, y0, x0, n0]).reshape(BLOCK_B * BLOCK_Y * BLOCK_X, BLOCK_N)
    if SPLIT and not QUANTISE:
        potential *= tl.load(gain + n0 + tl.arange(0, BLOCK_N))[None, :]
    synapses = 0
    if COUNT > 1:
        synapses = load_synapses(table, y0, x0, n0, N, X, ALIKE, BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N)
    # fmt: off
    if ONE_LOOP:
        for i in range(steps * ROUNDS):
            t = i // ROUNDS
            potential = accumulate(
                potential, spikes, second, weight, t * B + b0, y0, x0, n0, N, i % ROUNDS,
                C, WIDE_C, SECOND_C, KERNEL_Y, KERNEL_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X,
                TAPS, SPLIT, PRECISION, VIA_FLOAT32, BLOCK_C,
            )
            if i % ROUNDS == ROUNDS - 1:
                potential = fire(
                    potential, bias, residual, residual_scale, residual_step, threshold, high, out,
                    totals, reached, synapses, t, b0, y0, x0, n0, B,
                    STRICT, SUBTRACT, QUANTISE, RESIDUAL, COUNT, ALIKE,
                    BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N,
                )
    else:
        for t in range(steps):
            for i in range(ROUNDS):
                potential = accumulate(
                    potential, spikes, second, weight, t * B + b0, y0, x0, n0, N, i,
                    C, WIDE_C, SECOND_C, KERNEL_Y, KERNEL_X, STRIDE_Y, STRIDE_X, PADDING_Y, PADDING_X,
                    TAPS, SPLIT, PRECISION, VIA_FLOAT32, BLOCK_C,
                )
            potential = fire(
                potential, bias, residual, residual_scale, residual_step, threshold, high, out,
                totals, reached, synapses, t, b0, y0, x0, n0, B,
                STRICT, SUBTRACT, QUANTISE, RESIDUAL, COUNT, ALIKE,
                BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N,
            )
    # fmt: on
    if not QUANTISE:
        if SPLIT:
            potential /= tl.load(gain + n0 + tl.arange(0, BLOCK_N))[None, :]
        membrane.store([b0, y0, x0, n0], potential.reshape(BLOCK_B, BLOCK_Y, BLOCK_X, BLOCK_N))


def run(problem: Convolution, tile: Tile | None) -> None:
    """Fill `out` in one launch, updating `membrane` in place if there is one.

    Args:
        problem: The arguments; the threshold must be one value per channel.
        tile: What a program owns; chosen for the layer if not given.
    """
    p = widen(flatten_small_image(separate(problem, tile.depth if tile else None)))
    _, B, N, Y, X = p.out.shape
    images = align((p.spikes.view(torch.int8) if p.integer else p.spikes).movedim(2, -1))
    second = None if p.second is None else view_second(p.second.view(torch.int8) if p.integer else p.second)
    out = p.out.movedim(2, -1)
    written = align(out)
    membrane = p.membrane.movedim(1, -1) if isinstance(p, Problem) else out[0]
    state = align(membrane) if isinstance(p, Problem) else written[0]
    extra = state[None]
    if p.residual is not None:
        extra = align((p.residual if p.residual.dim() == 5 else p.residual[None]).movedim(2, -1))

    C = images.shape[-1] + (0 if second is None else second.shape[-1])
    weight, gain = pack(p.weight)
    processors = _count_processors(images.device)
    pixels = standard_batch(B) * Y * X
    ranked = rank_tiles(weight.dtype, C, N, pixels, processors, p.residual is not None)
    if isinstance(p, Quantisation):
        # One loop over steps and products would need more registers than two programs can share.
        ranked = [replace(t, one_loop=False) for t in ranked]
    arrays = _Arrays(images, second, weight, gain, state, extra, written)
    for cut in [tile] if tile else [t for t in ranked if (images.device, t) not in _too_large]:
        try:
            _launch(p, arrays, cut)
            break
        except OutOfResources:  # raised before anything runs
            _too_large.add((images.device, cut))
    else:
        raise RuntimeError(f"{images.device} has too little shared memory for every tile of the fused kernel")
    for result, aligned in ((membrane, state), (out, written)):
        if aligned.data_ptr() != result.data_ptr():
            result.copy_(aligned[..., :N])


@dataclass(frozen=True)
class _Arrays:
    """The tensors in the layout that the kernel needs."""

    images: Tensor
    second: Tensor | None
    weight: Tensor
    gain: Tensor | None
    state: Tensor
    extra: Tensor
    written: Tensor


def _launch(p: Convolution, a: _Arrays, cut: Tile) -> None:
    T, B, _, _, _ = p.spikes.shape
    N, _, kernel_y, kernel_x = p.weight.shape
    Y, X = p.out.shape[-2:]
    images, weight, gain, state, extra, written = a.images, a.weight, a.gain, a.state, a.extra, a.written
    C, more = images.shape[-1], 0 if a.second is None else a.second.shape[-1]
    block_b, block_y, block_x = cut_pixels(cut.pixels, Y, X)
    box, view = [block_b, block_y, block_x, cut.channels], [block_b, block_y, 1, block_x, cut.depth]
    spikes = _describe(_fold_stride(images, p.stride), view)
    programs = prod(-(-size // block) for size, block in zip((B, Y, X, N), box, strict=True))

    def vector(values: Tensor | None, default: float, beyond: float, most: float = inf) -> Tensor:
        """One value per output channel, padded to a multiple of the tile."""
        if values is None:
            return torch.full((N + -N % cut.channels,), default, dtype=p.number, device=state.device)
        values = values.to(p.number).flatten().contiguous()
        if gain is not None:
            values = (values * gain).clamp(max=most)
        return values if N % cut.channels == 0 else F.pad(values, (0, -N % cut.channels), value=beyond)

    largest = torch.iinfo(torch.int32).max if p.integer else torch.finfo(torch.float32).max
    residual_scale = p.residual_scale
    if p.residual is not None and residual_scale is None:
        residual_scale = torch.ones(N, dtype=p.number, device=state.device)
    threshold = vector(p.threshold.expand(N, 1, 1), largest, largest, largest)
    totals = p.totals if isinstance(p, Problem) else None
    reached = p.reached if isinstance(p, Problem) else None
    synapses, alike = (None, cut.channels)
    if isinstance(p, Problem) and p.fan_out is not None:
        synapses, alike = group_synapses(p.fan_out, cut.channels)
    high = F.pad(p.high.to(p.number), (0, -N % cut.channels)) if isinstance(p, Quantisation) else threshold
    with torch.cuda.device_of(images):
        launch(
            _conv_integrate_fire,
            (programs,),
            spikes,
            spikes if a.second is None else TensorDescriptor.from_tensor(a.second, view),
            _describe(weight, [cut.channels, cut.depth]),
            vector(p.bias, 0, 0),
            _describe(extra, [1, *box]),
            threshold if residual_scale is None else vector(residual_scale, 1, 0),
            int(len(extra) > 1),
            _describe(state, box),
            threshold if gain is None else F.pad(gain, (0, -N % cut.channels), value=1),
            threshold,
            high,
            _describe(written, [1, *box]),
            threshold if totals is None else totals,
            threshold if reached is None else reached,
            threshold if synapses is None else synapses,
            T,
            B,
            N,
            Y,
            X,
            C=C,
            WIDE_C=_round_wide(count_wide(p.weight), cut.depth, C + more),
            SECOND_C=more,
            KERNEL_Y=kernel_y,
            KERNEL_X=kernel_x,
            STRIDE_Y=p.stride[0],
            STRIDE_X=p.stride[1],
            PADDING_Y=p.padding[0],
            PADDING_X=p.padding[1],
            STRICT=isinstance(p, Problem) and p.strict,
            SUBTRACT=isinstance(p, Problem) and p.reset == "subtract",
            QUANTISE=isinstance(p, Quantisation),
            RESIDUAL=p.residual is not None,
            COUNT=0 if totals is None else 1 if reached is None else 2,
            ALIKE=alike,
            SPLIT=gain is not None,
            PRECISION="ieee",
            VIA_FLOAT32=not p.integer and os.environ.get("TRITON_INTERPRET") == "1",
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
