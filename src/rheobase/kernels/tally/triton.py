"""Counting over time in Triton: a program takes a stretch of one step's signal.

Letters: T steps, M values of all samples at one step, N of one sample.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

BLOCK, ROUNDS = 2048, 16


@triton.jit(do_not_specialize_on_alignment=["spikes", "reached"])
def _tally(
    signal, fan_out, spikes, reached, M, N, FAN_OUT: tl.constexpr, BLOCK: tl.constexpr, ROUNDS: tl.constexpr
):
    t = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * (BLOCK * ROUNDS)
    active = tl.zeros((BLOCK,), tl.int32)
    synapses = tl.zeros((BLOCK,), tl.int64)
    for i in range(ROUNDS):
        m = first + i * BLOCK + tl.arange(0, BLOCK)
        fired = (tl.load(signal + t * M + m, mask=m < M, other=0) != 0).to(tl.int32)
        active += fired
        if FAN_OUT:
            synapses += (fired * tl.load(fan_out + m % N)).to(tl.int64)
    tl.atomic_add(spikes + t, tl.sum(active, 0).to(tl.int64))
    if FAN_OUT:
        tl.atomic_add(reached + t, tl.sum(synapses, 0))


def run(
    signal: Tensor, fan_out: Tensor | None, spikes: Tensor | None, reached: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Count, as `tally` says."""
    last = signal.dim() == 5 and signal.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    if last and fan_out is not None:
        fan_out = fan_out.movedim(0, -1)
    flat = (signal.movedim(2, -1) if last else signal).flatten(1).contiguous()
    T, M = flat.shape
    if spikes is None:
        spikes = torch.zeros(T, dtype=torch.int64, device=signal.device)
    if fan_out is None:
        reached = None
    elif reached is None:
        reached = torch.zeros_like(spikes)
    weights = None if fan_out is None else fan_out.to(torch.int32).contiguous()
    if M == 0:
        return spikes, reached
    with torch.cuda.device_of(signal):
        launch(
            _tally,
            (triton.cdiv(M, BLOCK * ROUNDS), T),
            flat,
            flat if weights is None else weights,
            spikes,
            spikes if reached is None else reached,
            M,
            1 if weights is None else weights.numel(),
            FAN_OUT=fan_out is not None,
            BLOCK=BLOCK,
            ROUNDS=ROUNDS,
        )
    return spikes, reached
