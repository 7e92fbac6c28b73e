"""Counts that follow targets in Triton: a program takes a stretch of one sample over all steps.

Letters: T steps, B batch, N values of a sample.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.follow.layout import flatten_targets, in_order
from rheobase.kernels.launching import launch

_LONGEST = 4096


@triton.jit
def move(current, wanted, LARGEST: tl.constexpr):
    """Counts after one event towards those wanted, and which of them changed. All counts are float32."""
    difference = wanted - current
    if LARGEST > 0:
        # The sign and the power of two of a number, without its mantissa.
        event = (difference.to(tl.int32, bitcast=True) & -8388608).to(tl.float32, bitcast=True)
        moved = current + tl.minimum(tl.maximum(event, -LARGEST), LARGEST)
        return moved, (event != 0).to(tl.int32)
    return wanted, (difference != 0).to(tl.int32)


@triton.jit(do_not_specialize=["T", "B"])
def _follow(
    target,
    count,
    out,
    fan_out,
    events,
    reached,
    T,
    B,
    N,
    target_step,
    out_step,
    LARGEST: tl.constexpr,
    WRITES: tl.constexpr,
    FAN_OUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    parts = tl.cdiv(N, BLOCK)
    b = tl.program_id(0) // parts
    n = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    place = b.to(tl.int64) * N + n
    read, write = target + place, out + place
    # Without sizes any values are compared, as they are.
    current = tl.load(count + place, mask=inside, other=0)
    if LARGEST > 0:
        current = current.to(tl.float32)
    if FAN_OUT:
        synapses = tl.load(fan_out + n, mask=inside, other=0)
    for t in range(T):
        wanted = tl.load(read, mask=inside, other=0)
        read += target_step
        if LARGEST > 0:
            current, changed = move(current, wanted.to(tl.float32), LARGEST)
        else:
            changed = (wanted != current.to(wanted.dtype)).to(tl.int32)
            current = wanted.to(current.dtype)
        if WRITES:
            tl.store(write, current.to(out.dtype.element_ty), mask=inside)
            write += out_step
        tl.atomic_add(events + t * B + b, tl.sum(changed, 0).to(tl.int64), sem="relaxed")
        if FAN_OUT:
            tl.atomic_add(reached + t * B + b, tl.sum((changed * synapses).to(tl.int64), 0), sem="relaxed")
    tl.store(count + place, current.to(count.dtype.element_ty), mask=inside)


def run(
    target: Tensor, count: Tensor, sizes: int | None, out: Tensor | None, fan_out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Move and count, as `follow` says."""
    T, B = target.shape[:2]
    events = torch.zeros(T, B, dtype=torch.int64, device=target.device)
    reached = None if fan_out is None else torch.zeros_like(events)
    target_TBN = flatten_targets(count, target)
    ordered = in_order(count, count)
    state = ordered.contiguous()
    results = None if out is None else in_order(count, out)
    written = results
    if results is not None and not results.is_contiguous():
        written = torch.empty_like(results, memory_format=torch.contiguous_format)
    synapses = None if fan_out is None else in_order(count, fan_out).to(torch.int32).contiguous()
    N = target_TBN.shape[2]
    if T * B * N == 0:
        return events, reached
    block = min(_LONGEST, max(32, triton.next_power_of_2(N)))
    with torch.cuda.device_of(target):
        launch(
            _follow,
            (triton.cdiv(N, block) * B,),
            target_TBN,
            state,
            state if written is None else written,
            state if synapses is None else synapses,
            events,
            events if reached is None else reached,
            T,
            B,
            N,
            target_TBN.stride(0),
            B * N,
            LARGEST=0 if sizes is None else 2 ** (sizes - 1),
            WRITES=written is not None,
            FAN_OUT=fan_out is not None,
            BLOCK=block,
        )
    if state is not ordered:
        ordered.copy_(state)
    if results is not None and written is not None and written is not results:
        results.copy_(written)
    return events, reached
