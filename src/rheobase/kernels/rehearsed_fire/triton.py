"""A rehearsal in Triton: a program owns a block of neurons and keeps their state in registers.

Letters: T steps, N all neurons of the batch, M distinct values of a parameter.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch
from rheobase.kernels.rehearsed_fire.rule import RehearsedRule
from rheobase.kernels.rows import flat_out, flat_states, flat_steps, flat_table

_BLOCK = 512


@triton.jit(do_not_specialize=["before", "steps", "turn", "turns", "length"])
def _rehearsed_fire(
    current,
    membrane,
    start,
    factor,
    silent,
    firing,
    table,
    out,
    neurons,
    before,
    steps,
    turn,
    turns,
    length,
    current_step,
    out_step,
    M,
    repeat,
    CLEAR: tl.constexpr,
    SHIFTS: tl.constexpr,
    STRICT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < neurons
    row = table + (n // repeat) % M
    theta = tl.load(row, mask=inside, other=1.0)
    amplitude = tl.load(row + M, mask=inside, other=0.0)
    potential = tl.load(membrane + n, mask=inside, other=0.0)
    first = tl.load(start + n, mask=inside, other=0.0)
    if SHIFTS:
        most = tl.load(silent + n, mask=inside, other=0.0)
        least = tl.load(firing + n, mask=inside, other=0.0)
    else:
        sends = tl.load(factor + n, mask=inside, other=0.0)
    current += n
    out += n
    for t in range(before, before + steps):
        potential += tl.load(current, mask=inside, other=0.0).to(potential.dtype)
        fired = potential > theta if STRICT else potential >= theta
        if SHIFTS:
            own = ((turn - 1) * length <= t) & (t < turn * length)
            most = tl.where(own, tl.maximum(most, tl.where(fired, float("-inf"), potential)), most)
            least = tl.where(own, tl.minimum(least, tl.where(fired, potential, float("inf"))), least)
        potential = tl.where(fired, potential - theta, potential)
        sent = tl.where(fired, amplitude, 0.0)
        if not SHIFTS:
            sent *= sends
        tl.store(out, sent.to(out.dtype.element_ty), mask=inside)
        learns = t + 1 == turn * length
        if SHIFTS:
            less = (potential < 0) & (least < float("inf"))
            more = (potential >= theta) & (most > float("-inf"))
            lower = tl.maximum(theta, least - (1 - CLEAR) * theta)
            higher = tl.maximum(theta, (1 + CLEAR) * theta - most)
            moved = tl.where(more, higher, 0.0) - tl.where(less, lower, 0.0)
            first = tl.where(learns, first + moved, first)
        else:
            clear = tl.where(potential > CLEAR * theta, 1.0, 0.0).to(sends.dtype)
            sends = tl.where(learns, clear, sends)
        again = ((t + 1) % length == 0) & (t < turns * length)
        potential = tl.where(again, first, potential)
        current += current_step
        out += out_step
    tl.store(membrane + n, potential, mask=inside)
    tl.store(start + n, first, mask=inside)
    if SHIFTS:
        tl.store(silent + n, most, mask=inside)
        tl.store(firing + n, least, mask=inside)
    else:
        tl.store(factor + n, sends, mask=inside)


def run(
    current: Tensor,
    membrane: Tensor,
    memory: dict[str, Tensor],
    rule: RehearsedRule,
    out: Tensor,
    before: int,
) -> None:
    """Fill `out` in one launch, updating `membrane` and `memory` in place."""
    table, repeat = flat_table([rule.threshold, rule.amplitude], membrane)
    kept = [memory.get(name, membrane) for name in ("start", "factor", "silent", "firing")]
    states = flat_states(membrane, *kept)
    current_TN, out_TN = flat_steps(current, membrane, len(out)), flat_out(out, membrane)
    with torch.cuda.device_of(membrane):
        launch(
            _rehearsed_fire,
            (triton.cdiv(membrane.numel(), _BLOCK),),
            current_TN,
            *states,
            table,
            out_TN,
            membrane.numel(),
            before,
            len(out),
            rule.turn,
            rule.turns,
            rule.length,
            current_TN.stride(0),
            out_TN.stride(0),
            table.shape[1],
            repeat,
            CLEAR=rule.clear,
            SHIFTS=rule.shifts,
            STRICT=rule.strict,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,  # as products are rounded in the reference
        )
