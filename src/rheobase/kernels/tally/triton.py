"""Counting over time in Triton: a program takes a stretch of values over some samples at one step.

Letters: T steps, B batch, N values of a sample.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

_BLOCK, _SAMPLES = 2048, 8


@triton.jit(do_not_specialize=["B"], do_not_specialize_on_alignment=["spikes", "reached"])
def _tally(
    signal, fan_out, spikes, reached, B, N, FAN_OUT: tl.constexpr, BLOCK: tl.constexpr, SAMPLES: tl.constexpr
):
    t = tl.program_id(1).to(tl.int64)
    parts = tl.cdiv(N, BLOCK)
    n = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0) // parts * SAMPLES
    active = tl.zeros((BLOCK,), tl.int32)
    for i in tl.static_range(SAMPLES):  # unrolled, so that all loads are under way together
        b = first + i
        active += (tl.load(signal + (t * B + b) * N + n, mask=(n < N) & (b < B), other=0) != 0).to(tl.int32)
    tl.atomic_add(spikes + t, tl.sum(active, 0).to(tl.int64), sem="relaxed")
    if FAN_OUT:
        synapses = tl.load(fan_out + n, mask=n < N, other=0)
        tl.atomic_add(reached + t, tl.sum(active.to(tl.int64) * synapses, 0), sem="relaxed")


def run(
    signal: Tensor, fan_out: Tensor | None, spikes: Tensor | None, reached: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Count, as `tally` says."""
    last = signal.dim() == 5 and signal.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    if last and fan_out is not None:
        fan_out = fan_out.movedim(0, -1)
    flat = (signal.movedim(2, -1) if last else signal).flatten(2).contiguous()
    T, B, N = flat.shape
    if spikes is None:
        spikes = torch.zeros(T, dtype=torch.int64, device=signal.device)
    if fan_out is None:
        reached = None
    elif reached is None:
        reached = torch.zeros_like(spikes)
    weights = None if fan_out is None else fan_out.to(torch.int32).contiguous()
    if flat.numel() == 0:
        return spikes, reached
    block = min(_BLOCK, max(32, triton.next_power_of_2(N)))
    with torch.cuda.device_of(signal):
        launch(
            _tally,
            (triton.cdiv(N, block) * triton.cdiv(B, _SAMPLES), T),
            flat,
            flat if weights is None else weights,
            spikes,
            spikes if reached is None else reached,
            B,
            N,
            FAN_OUT=fan_out is not None,
            BLOCK=block,
            SAMPLES=_SAMPLES,
        )
    return spikes, reached
