"""A convolution that drives integrate-and-fire neurons, on a processor, piece by piece.

A piece is a few steps of the whole batch, or some samples of one step: so few that its currents are still in
the cache when the neurons take them. Int8 weights meet one-byte spikes in oneDNN's integer convolution, which
multiplies four numbers where single precision multiplies one, and more with a matrix unit; weights of any
other kind are convolved in single precision.

Letters: T steps, B batch, N output channels, Y and X output rows and columns; t and b those of a piece and
n = t·b its images.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.conv_integrate_fire import amx, reference
from rheobase.kernels.conv_integrate_fire.packing import keep
from rheobase.kernels.conv_integrate_fire.problem import Problem
from rheobase.kernels.integrate_fire import integrate_fire

# Currents at a time: fewer, and starting operations takes the time; more, and they leave the cache.
PIECE = 1 << 21
# Single precision holds all whole numbers up to here.
EXACT = 1 << 24

Convolution = Callable[[Tensor], Tensor]


def run(problem: Problem) -> None:
    """Fill `out`, updating `membrane` and `totals` in place, on the matrix unit where there is one to use."""
    if amx.supports(problem):
        amx.run(problem)
    else:
        run_in_pieces(problem)


def run_in_pieces(problem: Problem, piece: int = PIECE) -> None:
    """Fill `out`, updating `membrane` and `totals` in place, by operations of PyTorch."""
    _keep_freed_memory()
    p = problem
    if p.weight.dtype != torch.int8:
        _advance(p, piece)
    elif _bound(p) < EXACT:
        membrane = p.membrane.float()
        _advance(replace(p, membrane=membrane), piece)
        p.membrane.copy_(membrane)
    elif len(p.spikes) > 1:
        # Fewer steps go less far, perhaps not beyond what is exact.
        half = len(p.spikes) // 2
        run_in_pieces(_select(p, slice(half), slice(None)), piece)
        run_in_pieces(_select(p, slice(half, None), slice(None)), piece)
    else:
        reference.run(p)


@cache
def _keep_freed_memory() -> None:
    """Let the C library keep what a piece frees for the next one.

    GNU's returns blocks to the system that are larger than any freed before, and getting them back, page by
    page, takes longer than the neurons. It judges by sizes up to 32 MiB, whether or not they were used.
    """
    torch.empty(2**25 - 2**16, dtype=torch.uint8, device="cpu")


def _bound(p: Problem) -> int:
    """Return what no potential of an integer problem, nor any sum on the way to one, can exceed."""
    weights = keep(p.weight, "sum", lambda: int(p.weight.int().abs().sum((1, 2, 3)).max()))
    factor = 1 if p.residual_scale is None else _largest(p.residual_scale)
    residual = 0 if p.residual is None else factor * _largest(p.residual.movedim(-3, -1))
    bias = 0 if p.bias is None else _largest(p.bias)
    current = weights * _largest(p.spikes.movedim(2, -1)) + bias + residual
    return _largest(p.membrane.movedim(1, -1)) + len(p.spikes) * current


def _largest(values: Tensor) -> int:
    low = 0 if values.dtype == torch.uint8 else -int(values.min())
    return max(int(values.max()), low)


def _advance(p: Problem, piece: int) -> None:
    T, B, N, Y, X = p.out.shape
    convolve = _integer_convolution(p) if p.weight.dtype == torch.int8 else _float_convolution(p)
    membrane_BYXN = p.membrane.movedim(1, -1).contiguous()
    threshold = p.threshold.float()
    if threshold.dim() > 0:
        threshold = threshold[(None,) * (3 - threshold.dim())].movedim(0, -1)
    for steps, samples in _cut(T, B, N * Y * X, piece):
        part = _select(p, steps, samples)
        current_nYXN = convolve(part.spikes.flatten(0, 1)).movedim(1, -1)
        current_tbYXN = current_nYXN.view(*part.out.shape[:2], Y, X, N)
        _add_residual(current_tbYXN, part)
        out_tbYXN = part.out.movedim(2, -1)
        # A batch's part is not contiguous, its steps are.
        fits = all(step.is_contiguous() for step in out_tbYXN)
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
            part.totals.add_(spikes_tbYXN.flatten(2).sum(2, dtype=torch.int32))
    if membrane_BYXN.data_ptr() != p.membrane.data_ptr():
        p.membrane.copy_(membrane_BYXN.movedim(-1, 1))


def _cut(T: int, B: int, neurons: int, piece: int) -> Iterator[tuple[slice, slice]]:
    """Cut T steps of B samples into pieces: some steps of the batch or, where one is too large, of a part."""
    b = max(1, min(B, piece // neurons))
    t = max(1, piece // (neurons * B))
    for sample in range(0, B, b):
        for step in range(0, T, t):
            yield slice(step, step + t), slice(sample, sample + b)


def _select(p: Problem, steps: slice, samples: slice) -> Problem:
    """Return the same problem over some steps of some samples, as views."""
    residual = p.residual
    if residual is not None:
        residual = residual[steps, samples] if residual.dim() == p.out.dim() else residual[samples]
    return replace(
        p,
        spikes=p.spikes[steps, samples],
        membrane=p.membrane[samples],
        out=p.out[steps, samples],
        residual=residual,
        totals=None if p.totals is None else p.totals[steps, samples],
    )


def _add_residual(current_tbYXN: Tensor, p: Problem) -> None:
    if p.residual is None:
        return
    extra = _signed(p.residual).movedim(-3, -1).float()
    if p.residual_scale is None:
        current_tbYXN.add_(extra)
    else:
        current_tbYXN.addcmul_(extra, p.residual_scale.float())


def _signed(spikes: Tensor) -> Tensor:
    """View bytes as signed ones: the same up to 127, and torch converts them several times faster."""
    return spikes.view(torch.int8) if spikes.dtype == torch.uint8 else spikes


def _float_convolution(p: Problem) -> Convolution:
    last = torch.channels_last
    weight = keep(p.weight, "float32", lambda: p.weight.float().contiguous(memory_format=last))
    bias = None if p.bias is None else p.bias.float()
    geometry = [list(p.padding), list(p.stride), list(p.dilation), p.groups]

    def convolve(spikes: Tensor) -> Tensor:
        images = _signed(spikes).float().contiguous(memory_format=last)
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return F.conv2d(images, weight, bias, p.stride, p.padding, p.dilation, p.groups)
        # PyTorch would choose another routine for few images, with another order of the sums.
        current: Tensor = torch.ops.aten.mkldnn_convolution(images, weight, bias, *geometry)
        return current

    return convolve


def _integer_convolution(p: Problem) -> Convolution:
    reach = [d * (k - 1) + 1 for d, k in zip(p.dilation, p.weight.shape[2:], strict=True)]
    # Where a dilated window lies in the padding altogether, oneDNN's ends the process.
    outside = any(border >= r for border, r in zip(p.padding, reach, strict=True))
    if outside or not can_multiply_integers():
        return _float_convolution(p)
    geometry = [list(p.stride), list(p.padding), list(p.dilation), p.groups]
    N = len(p.weight)
    unit, zero = p.weight.new_ones(N, dtype=torch.float32), p.weight.new_zeros(N, dtype=torch.int64)
    bias = None if p.bias is None else p.bias.float()

    def pack() -> Tensor:
        order: Tensor = torch.ops.onednn.qconv_prepack(p.weight.contiguous(), unit, 1.0, 0, *geometry, None)
        return order

    def convolve(spikes: Tensor) -> Tensor:
        images = spikes.contiguous(memory_format=torch.channels_last)
        current: Tensor = torch.ops.onednn.qconv2d_pointwise(
            images, 1.0, 0, packed, unit, zero, bias, *geometry, 1.0, 0, torch.float32, "none", [], ""
        )
        return current

    packed = keep(p.weight, ("onednn", str(geometry)), pack)
    return convolve


def can_multiply_integers() -> bool:
    """Whether this PyTorch has oneDNN's integer convolution for this processor."""
    return (
        torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and hasattr(torch.ops.onednn, "qconv2d_pointwise")
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    )
