"""Counts that follow sums of currents in Triton: a program takes a stretch of one sample over all steps.

Letters: T steps, B batch, N values of a sample.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.encode.rounding import Rounding
from rheobase.kernels.follow.layout import in_order
from rheobase.kernels.follow.triton import move
from rheobase.kernels.launching import launch
from rheobase.kernels.routines import report_routine

_BLOCK = 2048
_DIMS = 4
_HALF_ROOT = 0.70710678118654752440


@triton.jit
def _place(i0, i1, i2, i3, s0, s1, s2, s3):
    return i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3


@triton.jit(do_not_specialize=["T", "B"])
def _encode(
    current, count, out, quantum, bound, scale, bias, fan_out, events, reached,
    T, B, N, D1, D2, D3, start, low, high,
    current_t, current_b, c0, c1, c2, c3, q0, q1, q2, q3, m0, m1, m2, m3, s0, s1, s2, s3,
    b0, b1, b2, b3,
    FLAT: tl.constexpr, BOUNDED: tl.constexpr, SCALED: tl.constexpr, SHIFTED: tl.constexpr,
    FUNCTION: tl.constexpr, HALF_ROOT: tl.constexpr, LARGEST: tl.constexpr, FAN_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    parts = tl.cdiv(N, BLOCK)
    b = tl.program_id(0) // parts
    n = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    i3, rest = n % D3, n // D3
    i2, rest = rest % D2, rest // D2
    i1, i0 = rest % D1, rest // D1
    read = current + b.to(tl.int64) * current_b
    read += n if FLAT else _place(i0, i1, i2, i3, c0, c1, c2, c3)
    place = b.to(tl.int64) * N + n
    write = out + place
    unit = tl.load(quantum + _place(i0, i1, i2, i3, q0, q1, q2, q3), mask=inside, other=1.0)
    if BOUNDED:
        most = tl.load(bound + _place(i0, i1, i2, i3, m0, m1, m2, m3), mask=inside, other=0.0)
    if SCALED:
        factor = tl.load(scale + _place(i0, i1, i2, i3, s0, s1, s2, s3), mask=inside, other=1.0)
    if SHIFTED:
        shift = tl.load(bias + _place(i0, i1, i2, i3, b0, b1, b2, b3), mask=inside, other=0.0)
    if FAN_OUT:
        synapses = tl.load(fan_out + n, mask=inside, other=0)
    state = tl.load(count + place, mask=inside, other=0).to(tl.float32)
    for t in range(T):
        z = tl.load(read, mask=inside, other=0).to(tl.float32)
        read += current_t
        if SCALED:
            z = z * factor
        if SHIFTED:
            z = z + shift
        if BOUNDED:
            z = tl.minimum(tl.maximum(z, 0.0), most)
        if FUNCTION == "gelu":
            wide = z.to(tl.float64)
            wide = wide * 0.5 * (1.0 + tl.erf(wide * HALF_ROOT))
            rounded = tl.floor(wide / unit.to(tl.float64) + start).to(tl.float32)
        else:
            rounded = tl.floor(tl.div_rn(z, unit) + start)
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
    reached = None if fan_out is None else torch.zeros_like(events)
    ordered = in_order(count, count)
    shape = ordered.shape[1:]
    if T * ordered.numel() == 0:
        return events, reached
    source, results = in_order(count, current), in_order(count, out)
    if len(shape) > _DIMS:
        source, shape = source.flatten(2), torch.Size((ordered[0].numel(),))
    state = ordered.contiguous()
    written = results
    if not results.is_contiguous():
        written = torch.empty_like(results, memory_format=torch.contiguous_format)
    synapses = None if fan_out is None else in_order(count, fan_out).to(torch.int32).contiguous()

    def spread(values: Tensor | None) -> tuple[Tensor, list[int]]:
        """Values that broadcast against samples, and their strides over a sample."""
        if values is None:
            return source, [0] * _DIMS
        whole = in_order(count, values.expand(count.shape[1:])[None])[0]
        whole = whole if whole.dim() <= _DIMS else whole.flatten()
        return whole, _strides(whole.stride())

    vectors = (rounding.quantum, rounding.parameter, rounding.scale, rounding.bias)
    quantum, bound, scale, bias = (spread(x) for x in vectors)
    sizes_D = [1] * (_DIMS - len(shape)) + list(shape)
    N = state[0].numel()
    with torch.cuda.device_of(current):
        launch(
            _encode,
            (triton.cdiv(N, _BLOCK) * B,),
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
            N,
            *sizes_D[1:],
            float(rounding.start),
            float(rounding.low),
            float(rounding.high),
            source.stride(0),
            source.stride(1),
            *_strides(source.stride()[2:]),
            *quantum[1],
            *bound[1],
            *scale[1],
            *bias[1],
            FLAT=source[0, 0].is_contiguous(),
            BOUNDED=rounding.parameter is not None,
            SCALED=rounding.scale is not None,
            SHIFTED=rounding.bias is not None,
            FUNCTION=rounding.name,
            HALF_ROOT=_HALF_ROOT,
            LARGEST=0 if sizes is None else 2 ** (sizes - 1),
            FAN_OUT=fan_out is not None,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,  # a product and a sum are rounded one by one, as elsewhere
        )
    if state is not ordered:
        ordered.copy_(state)
    if written is not results:
        results.copy_(written)
    return events, reached


def _strides(strides: tuple[int, ...]) -> list[int]:
    return [0] * (_DIMS - len(strides)) + list(strides)
