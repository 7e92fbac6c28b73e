"""Counts that follow sums of currents in Triton: a program takes a stretch of one sample over all steps.

Letters: T steps, B batch, N values of a sample.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.encode.rounding import Rounding
from rheobase.kernels.follow.layout import in_order
from rheobase.kernels.follow.triton import move
from rheobase.kernels.launching import launch
from rheobase.kernels.routines import report_routine

# The values of a program: few enough for one warp, whose sums need no barrier. GELU needs more registers.
BLOCK, GELU_BLOCK, WARPS = 256, 128, 1
_DIMS = 4
_HALF_ROOT = 0.70710678118654752440
# How values are placed along a sample: all at one place, along its last dimension, or anyhow.
_ONE, _LAST, _ANY = range(3)


@triton.jit
def _place(n, D1, D2, D3, s0, s1, s2, s3, KIND: tl.constexpr):
    place = n % D3 * s3
    if KIND == 2:
        rest = n // D3
        place += rest % D2 * s2 + rest // D2 % D1 * s1 + rest // D2 // D1 * s0
    return place


@triton.jit
def _load(values, n, inside, other, D1, D2, D3, s0, s1, s2, s3, KIND: tl.constexpr):
    if KIND == 0:
        found = tl.load(values)
    else:
        place = _place(n, D1, D2, D3, s0, s1, s2, s3, KIND)
        found = tl.load(values + place, mask=inside, other=other)
    return found


@triton.jit
def _round_gelu(z, unit, inverse, START: tl.constexpr, HALF_ROOT: tl.constexpr):
    # Let e = 2^-24. The argument of erf is off by 2e relatively, which is e in erf; erff adds 2e (2 ulp) and
    # the sum e: 4e·|z|/2, and e·|z| for the product. The inverse (2 ulp), its product and the sum add
    # 6e·|z|/unit + 2e·START. All of them stay below 16e·(|z|/unit + START + 1).
    sought = z * 0.5 * (1.0 + tl.erf(z * HALF_ROOT)) * inverse + START
    bound = (tl.abs(z) * inverse + (START + 1)) * 9.5367431640625e-07
    rounded = tl.floor(sought)
    near = (tl.floor(sought - bound) != rounded) | (tl.floor(sought + bound) != rounded)
    if tl.max(near.to(tl.int32), 0) > 0:
        wide = z.to(tl.float64)
        wide = wide * 0.5 * (1.0 + tl.erf(wide * HALF_ROOT))
        rounded = tl.floor(wide / unit.to(tl.float64) + START).to(tl.float32)
    return rounded


@triton.jit(do_not_specialize=["T", "B", "pieces", "current_t", "current_b"])
def _encode(
    current, count, out, quantum, bound, scale, bias, fan_out, events, reached,
    T, B, pieces, D1, D2, D3, low, high,
    current_t, current_b, c0, c1, c2, c3, q0, q1, q2, q3, m0, m1, m2, m3, s0, s1, s2, s3,
    b0, b1, b2, b3,
    FLAT: tl.constexpr, QUANTUM: tl.constexpr, BOUND: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr,
    BOUNDED: tl.constexpr, SCALED: tl.constexpr, SHIFTED: tl.constexpr,
    FUNCTION: tl.constexpr, START: tl.constexpr, HALF_ROOT: tl.constexpr, LARGEST: tl.constexpr,
    FAN_OUT: tl.constexpr, PIECE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # As products, so that the compiler knows what all places are multiples of.
    N, step = pieces * PIECE, current_t.to(tl.int64) * PIECE
    parts = tl.cdiv(N, BLOCK)
    b = tl.program_id(0) // parts
    n = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    read = current + b.to(tl.int64) * current_b * PIECE
    read += n if FLAT else _place(n, D1, D2, D3, c0, c1, c2, c3, 2)
    place = b.to(tl.int64) * N + n
    write = out + place
    unit = _load(quantum, n, inside, 1.0, D1, D2, D3, q0, q1, q2, q3, QUANTUM)
    if BOUNDED:
        most = _load(bound, n, inside, 0.0, D1, D2, D3, m0, m1, m2, m3, BOUND)
    if SCALED:
        factor = _load(scale, n, inside, 1.0, D1, D2, D3, s0, s1, s2, s3, SCALE)
    if SHIFTED:
        shift = _load(bias, n, inside, 0.0, D1, D2, D3, b0, b1, b2, b3, BIAS)
    if FAN_OUT:
        synapses = tl.load(fan_out + n, mask=inside, other=0)
    if FUNCTION == "gelu":
        inverse = 1.0 / unit
    state = tl.load(count + place, mask=inside, other=0).to(tl.float32)
    ahead = tl.load(read, mask=inside, other=0)
    for t in range(T):
        z = ahead.to(tl.float32)
        read += step
        ahead = tl.load(read, mask=inside & (t + 1 < T), other=0)
        if SCALED:
            z = z * factor
        if SHIFTED:
            z = z + shift
        if BOUNDED:
            z = tl.minimum(tl.maximum(z, 0.0), most)
        if FUNCTION == "gelu":
            rounded = _round_gelu(z, unit, inverse, START, HALF_ROOT)
        else:
            rounded = tl.floor(tl.div_rn(z, unit) + START)
        wanted = tl.where(inside, tl.minimum(tl.maximum(rounded, low), high), 0.0)
        state, changed = move(state, wanted, LARGEST)
        tl.store(write, state.to(out.dtype.element_ty), mask=inside)
        write += B.to(tl.int64) * N
        tl.atomic_add(events + t * B + b, tl.sum(changed, 0).to(tl.int64), sem="relaxed")
        if FAN_OUT:
            tl.atomic_add(reached + t * B + b, tl.sum((changed * synapses).to(tl.int64), 0), sem="relaxed")
    tl.store(count + place, state.to(count.dtype.element_ty), mask=inside)


def run(
    current: Tensor, count: Tensor, rounding: Rounding, sizes: int | None, out: Tensor, fan_out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Round and follow, as `encode` says."""
    report_routine("triton encode")
    T, B = current.shape[:2]
    events = torch.zeros(T, B, dtype=torch.int64, device=current.device)
    uniform = fan_out is not None and fan_out.numel() > 0 and not any(fan_out.stride())
    reached = None if fan_out is None or uniform else torch.zeros_like(events)
    ordered = in_order(count, count)
    shape = ordered.shape[1:]
    if T * ordered.numel() == 0:
        return events, torch.zeros_like(events) if uniform else reached
    source, results = in_order(count, current), in_order(count, out)
    if len(shape) > _DIMS:
        source, shape = source.flatten(2), torch.Size((ordered[0].numel(),))
    state = ordered.contiguous()
    written = results
    if not results.is_contiguous():
        written = torch.empty_like(results, memory_format=torch.contiguous_format)
    synapses = None
    if fan_out is not None and not uniform:
        synapses = in_order(count, fan_out).to(torch.int32).contiguous()

    def spread(values: Tensor | None) -> tuple[Tensor, list[int], int]:
        """Values that broadcast against samples, their strides over a sample, and how they are placed."""
        if values is None:
            return source, [0] * _DIMS, _ONE
        whole = in_order(count, values.expand(count.shape[1:])[None])[0]
        whole = whole if whole.dim() <= _DIMS else whole.flatten()
        strides = _strides(tuple(s if n > 1 else 0 for n, s in zip(whole.shape, whole.stride(), strict=True)))
        return whole, strides, _ANY if any(strides[:-1]) else _LAST if strides[-1] else _ONE

    vectors = (rounding.quantum, rounding.parameter, rounding.scale, rounding.bias)
    quantum, bound, scale, bias = (spread(x) for x in vectors)
    sizes_D = [1] * (_DIMS - len(shape)) + list(shape)
    N = state[0].numel()
    block = GELU_BLOCK if rounding.name == "gelu" else BLOCK
    piece = math.gcd(N, source.stride(0), source.stride(1), 16)
    with torch.cuda.device_of(current):
        launch(
            _encode,
            (triton.cdiv(N, block) * B,),
            source,
            state,
            written,
            quantum[0],
            bound[0],
            scale[0],
            bias[0],
            state if synapses is None else synapses,
            events,
            events if reached is None else reached,
            T,
            B,
            N // piece,
            *sizes_D[1:],
            float(rounding.low),
            float(rounding.high),
            source.stride(0) // piece,
            source.stride(1) // piece,
            *_strides(source.stride()[2:]),
            *quantum[1],
            *bound[1],
            *scale[1],
            *bias[1],
            FLAT=source[0, 0].is_contiguous(),
            QUANTUM=quantum[2],
            BOUND=bound[2],
            SCALE=scale[2],
            BIAS=bias[2],
            BOUNDED=rounding.parameter is not None,
            SCALED=rounding.scale is not None,
            SHIFTED=rounding.bias is not None,
            FUNCTION=rounding.name,
            START=float(rounding.start),
            HALF_ROOT=_HALF_ROOT,
            LARGEST=0 if sizes is None else 2 ** (sizes - 1),
            FAN_OUT=synapses is not None,
            PIECE=piece,
            BLOCK=block,
            num_warps=WARPS,
            enable_fp_fusion=False,  # a product and a sum are rounded one by one, as elsewhere
        )
    if state is not ordered:
        ordered.copy_(state)
    if written is not results:
        results.copy_(written)
    if fan_out is not None and uniform:
        reached = events * fan_out[(0,) * fan_out.dim()].long()
    return events, reached


def _strides(strides: tuple[int, ...]) -> list[int]:
    return [0] * (_DIMS - len(strides)) + list(strides)
