"""A convolution that drives integrate-and-fire neurons, on a CPU, piece by piece.

A piece is a few steps of the whole batch, or some samples of one step: so few that its currents are still in
the cache when the neurons read them. Int8 weights use oneDNN's integer convolution, which multiplies four
numbers where single precision multiplies one. Bfloat16 weights of 0/1 spikes use it too, as integers of two
bytes. Other weights are convolved in single precision.

Letters: T steps, B batch, N output channels, Y and X output rows and columns; t and b those of a piece and
n = t·b its images.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.conv_integrate_fire import events, reference, tables
from rheobase.kernels.conv_integrate_fire.problem import (
    Convolution,
    Layer,
    Problem,
    Quantisation,
    is_channels_last,
)
from rheobase.kernels.integrate_fire import integrate_fire
from rheobase.kernels.kept import keep
from rheobase.kernels.routines import collect_routines, report_routine
from rheobase.kernels.threads import share_rows

# Currents at a time: with fewer, the overhead of operations dominates; more do not fit into the cache.
PIECE = 1 << 20
# Single precision holds all integers up to this one.
EXACT = 1 << 24
# A spike as the factors of both bytes of a weight, 128 and 1.
_BOTH = 128 + (1 << 8)

Convolve = Callable[[Tensor], Tensor]


def run(problem: Problem) -> None:
    """Fill `out`, updating `membrane` and `totals` in place, in the fastest way on this processor."""
    _keep_freed_memory()
    # With few outputs, listing the inputs that spiked takes as long as adding up their weights.
    few_outputs = len(problem.weight) < 64
    if few_outputs and tables.supports(problem):
        tables.run(problem)
    elif events.supports(problem) and (problem.weight.dtype != torch.float32 or _adds_in_order(problem)):
        events.run(problem)
    elif tables.supports(problem):
        tables.run(problem)
    else:
        run_in_pieces(problem)


def _adds_in_order(p: Problem) -> bool:
    """Whether oneDNN adds the products of this layer in the order of `events`, tried with random spikes.

    Which of both computes a layer depends on its spikes, but no bit of the result may.
    """

    def find() -> bool:
        draw = torch.Generator("cpu").manual_seed(0)
        images = torch.randint(0, 2, (4, H, W, C), generator=draw, dtype=torch.uint8, device="cpu").movedim(
            -1, 1
        )
        never = torch.full((1, 1, 1), torch.finfo(torch.float32).max, dtype=torch.float32, device="cpu")
        with collect_routines():  # these are not part of the run
            current = share_rows(_float_convolution(p), images, 0)
            membrane = torch.zeros_like(current, memory_format=torch.channels_last)
            out = torch.empty_like(current, dtype=torch.uint8, memory_format=torch.channels_last)
            tried = replace(p, spikes=images[None], membrane=membrane, threshold=never, out=out[None])
            events.run(replace(tried, residual=None, residual_scale=None, totals=None))
        return torch.equal(membrane, current)

    C, H, W = p.spikes.shape[2:]
    return is_channels_last(p.spikes) and keep(p.weight, ("in order", H, W, p.stride, p.padding), find)


def run_in_pieces(problem: Problem, piece: int = PIECE) -> None:
    """Fill `out`, updating `membrane` and `totals` in place, by PyTorch operations."""
    _keep_freed_memory()
    p = problem
    if p.weight.dtype != torch.int8:
        _advance(p, piece)
    elif _bound(p) < EXACT:
        membrane = p.membrane.float()
        _advance(replace(p, membrane=membrane), piece)
        p.membrane.copy_(membrane)
    elif len(p.spikes) > 1:
        # Potentials of fewer steps are smaller, and may be exact.
        half = len(p.spikes) // 2
        run_in_pieces(_select(p, slice(half), slice(None)), piece)
        run_in_pieces(_select(p, slice(half, None), slice(None)), piece)
    else:
        report_routine("reference convolution and scan")
        reference.run(p)


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep the memory that a piece frees for the next one.

    GNU's library returns blocks larger than any freed before to the system, and getting them back, page by
    page, takes longer than the neurons. Freeing a block of nearly 32 MiB once raises that limit.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")


def quantise(problem: Quantisation, piece: int = PIECE) -> None:
    """Fill `out`."""
    p = problem
    if p.integer and _bound_current(p) >= EXACT:
        report_routine("reference convolution")
        reference.quantise(p)
        return
    _keep_freed_memory()
    T, B, N, Y, X = p.out.shape
    convolve = _choose_convolution(p)
    threshold, high = p.threshold.flatten().float(), p.high.float()
    for steps, samples in _cut(T, B, N * Y * X, piece):
        part = _select(p, steps, samples)
        z_nYXN = share_rows(convolve, part.spikes.flatten(0, 1), _products(part)).movedim(1, -1)
        z_tbYXN = z_nYXN.reshape(*part.out.shape[:2], Y, X, N)
        _add_residual(z_tbYXN, part)
        # Single precision divides integers below 2^24 without rounding up to an integer.
        z = z_tbYXN if p.integer else z_tbYXN.double()
        count = z.div_(threshold.to(z.dtype)).floor_().clamp_(min=0).clamp_(max=high)
        _signed(part.out).movedim(2, -1).copy_(count)


def _bound(p: Problem) -> int:
    """Return a bound on the potentials of an integer problem and on all partial sums."""
    return _largest(p.membrane.movedim(1, -1)) + len(p.spikes) * _bound_current(p)


def _bound_current(p: Convolution) -> int:
    """Return a bound on the currents of an integer problem and on all partial sums."""
    weights = keep(p.weight, "sum", lambda: int(p.weight.int().abs().sum((1, 2, 3)).max()))
    factor = 1 if p.residual_scale is None else _largest_kept(p.residual_scale)
    residual = 0 if p.residual is None else factor * _largest(p.residual.movedim(-3, -1))
    bias = 0 if p.bias is None else _largest_kept(p.bias)
    return weights * _largest(p.spikes.movedim(2, -1)) + bias + residual


def _largest(values: Tensor) -> int:
    low = 0 if values.dtype == torch.uint8 else -int(values.min())
    return max(int(values.max()), low)


def _largest_kept(vector: Tensor) -> int:
    return keep(vector, "largest", lambda: _largest(vector))


def _advance(p: Problem, piece: int) -> None:
    T, B, N, Y, X = p.out.shape
    convolve = _choose_convolution(p)
    membrane_BYXN = p.membrane.movedim(1, -1).contiguous()
    threshold = keep(p.threshold, "float32", p.threshold.float)
    if threshold.dim() > 0:
        threshold = threshold[(None,) * (3 - threshold.dim())].movedim(0, -1)
    for steps, samples in _cut(T, B, N * Y * X, piece):
        part = _select(p, steps, samples)
        current_nYXN = share_rows(convolve, part.spikes.flatten(0, 1), _products(part)).movedim(1, -1)
        current_tbYXN = current_nYXN.reshape(*part.out.shape[:2], Y, X, N)
        _add_residual(current_tbYXN, part)
        out_tbYXN = part.out.movedim(2, -1)
        # A batch's part is not contiguous, its steps are.
        fits = out_tbYXN[0].is_contiguous()
        spikes_tbYXN = (
            out_tbYXN if fits else torch.empty_like(out_tbYXN, memory_format=torch.contiguous_format)
        )
        integrate_fire(
            current_tbYXN,
            membrane_BYXN[samples],
            threshold,
            steps=len(out_tbYXN),
            strict=p.strict,
            reset=p.reset,
            out=spikes_tbYXN,
            backend="cpu",
        )
        if not fits:
            out_tbYXN.copy_(spikes_tbYXN)
        if part.totals is not None:
            part.totals.add_(_count_ones(spikes_tbYXN.flatten(2)))
    if membrane_BYXN.data_ptr() != p.membrane.data_ptr():
        p.membrane.copy_(membrane_BYXN.movedim(-1, 1))


def _cut(T: int, B: int, neurons: int, piece: int) -> Iterator[tuple[slice, slice]]:
    """Cut T steps of B samples into pieces: some steps of the batch, or of a part of it."""
    b = max(1, min(B, piece // neurons))
    t = max(1, piece // (neurons * B))
    for sample in range(0, B, b):
        for step in range(0, T, t):
            yield slice(step, step + t), slice(sample, sample + b)


def _select(p: Layer, steps: slice, samples: slice) -> Layer:
    """Return the same problem over some steps of some samples, as views."""
    T, B = p.spikes.shape[:2]
    if (steps.indices(T), samples.indices(B)) == ((0, T, 1), (0, B, 1)):
        return p
    residual = p.residual
    if residual is not None:
        residual = residual[steps, samples] if residual.dim() == p.out.dim() else residual[samples]
    part = replace(p, spikes=p.spikes[steps, samples], out=p.out[steps, samples], residual=residual)
    if isinstance(p, Problem) and isinstance(part, Problem):
        totals = None if p.totals is None else p.totals[steps, samples]
        return replace(part, membrane=p.membrane[samples], totals=totals)
    return part


def _add_residual(current_tbYXN: Tensor, p: Convolution) -> None:
    if p.residual is None:
        return
    extra = _signed(p.residual).movedim(-3, -1).float()
    if p.residual_scale is None:
        current_tbYXN.add_(extra)
    else:
        current_tbYXN.addcmul_(extra, p.residual_scale.float())


def _signed(spikes: Tensor) -> Tensor:
    """View bytes as signed: the same up to 127, and torch converts from and to them several times faster."""
    return spikes.view(torch.int8) if spikes.dtype == torch.uint8 else spikes


def _count_ones(spikes_tbN: Tensor) -> Tensor:
    """How many bytes of each sample at each step are 1; eight are added at a time."""
    words, left = divmod(spikes_tbN.shape[2], 8)
    if spikes_tbN.dtype != torch.uint8 or left or spikes_tbN.stride(2) != 1:
        return spikes_tbN.sum(2, dtype=torch.int32)
    sums = spikes_tbN.view(torch.int64).view(*spikes_tbN.shape[:2], -1, _group(words)).sum(3)
    return sums.view(torch.uint8).sum(2, dtype=torch.int32)


@cache
def _group(words: int) -> int:
    """The largest part of a number of words such that the sum of as many ones fits into a byte."""
    return max(size for size in range(1, 256) if words % size == 0)


def _products(p: Convolution) -> int:
    return p.weight[0].numel() * p.out.numel()


def _choose_convolution(p: Convolution) -> Convolve:
    if p.integer:
        return _integer_convolution(p)
    if (
        p.weight.dtype == torch.bfloat16
        and p.spikes.dtype == torch.uint8
        and _largest(p.spikes.movedim(2, -1)) <= 1
    ):
        return _integer_convolution(p)
    return _float_convolution(p)


def _float_convolution(p: Convolution) -> Convolve:
    # As spikes are in memory, like a convolution on its own: the order of the sums may depend on it.
    last = p.weight.dtype != torch.float32 or is_channels_last(p.spikes)
    form = torch.channels_last if last else torch.contiguous_format
    weight = keep(p.weight, form, lambda: p.weight.float().contiguous(memory_format=form))
    bias = None if p.bias is None else p.bias.float()
    geometry = [list(p.padding), list(p.stride), [1, 1], 1]

    def convolve(spikes: Tensor) -> Tensor:
        images = _signed(spikes).float().contiguous(memory_format=form)
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            report_routine("torch conv2d")
            return F.conv2d(images, weight, bias, p.stride, p.padding)
        # PyTorch would choose another routine for few images, with another order of the sums.
        report_routine("oneDNN float32")
        current: Tensor = torch.ops.aten.mkldnn_convolution(images, weight, bias, *geometry)
        return current

    return convolve


def _integer_convolution(p: Convolution) -> Convolve:
    # If a window lies entirely in the padding, oneDNN's convolution ends the process.
    outside = any(border >= side for border, side in zip(p.padding, p.weight.shape[2:], strict=True))
    # With unequal strides it gives wrong sums for some images of one channel.
    unequal = p.stride[0] != p.stride[1]
    if outside or unequal or not can_multiply_integers():
        return _float_convolution(p)
    geometry = [list(p.stride), list(p.padding), [1, 1], 1]
    one = torch.ones(len(p.weight), dtype=torch.float32, device="cpu")
    zero = torch.zeros(len(p.weight), dtype=torch.int64, device="cpu")
    bias = None if p.bias is None else p.bias.float()

    def pack() -> tuple[Tensor, Tensor]:
        weight, unit = (p.weight, one) if p.integer else split(p.weight)
        order: Tensor = torch.ops.onednn.qconv_prepack(weight.contiguous(), one, 1.0, 0, *geometry, None)
        return order, unit

    def convolve(spikes: Tensor) -> Tensor:
        report_routine("oneDNN int8")
        images = spikes.contiguous(memory_format=torch.channels_last)
        if not p.integer:
            # A single channel may have any stride, and only a copy is sure to have that of a view.
            last = images.movedim(1, -1)
            wide = last.to(torch.int16, copy=True, memory_format=torch.contiguous_format)
            images = wide.mul_(_BOTH).view(torch.uint8).movedim(-1, 1)
        current: Tensor = torch.ops.onednn.qconv2d_pointwise(
            images, 1.0, 0, packed, unit, zero, bias, *geometry, 1.0, 0, torch.float32, "none", [], ""
        )
        return current

    packed, unit = keep(p.weight, ("onednn", str(geometry)), pack)
    return convolve


def split(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights as integers of two bytes, 128 · the first + the second, side by side as channels; their unit.

    The unit is a power of two for each output channel. Bfloat16 weights of at least 1/64 of the size of the
    largest one do not change.
    """
    exponent = torch.frexp(weight.float().flatten(1).abs().amax(1)).exponent - 14
    unit = torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)
    whole = (weight.float() / unit.view(-1, 1, 1, 1)).round()
    high = (whole / 128).floor()
    return torch.stack([high, whole - 128 * high], 2).flatten(1, 2).to(torch.int8), unit


def can_multiply_integers() -> bool:
    """Whether this PyTorch has oneDNN's integer convolution for this CPU."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.onednn, "qconv2d_pointwise")
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )
