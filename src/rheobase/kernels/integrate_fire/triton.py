"""Integrate-and-fire in Triton: a program owns a block of neurons and keeps their membrane in registers.

Letters: T steps, N all neurons of the batch, M distinct thresholds, B batch. If spikes are counted, a block
ends where a sample does.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.integrate_fire.layout import MOST, Counts
from rheobase.kernels.launching import launch

# With this many neurons a GPU hides the latency of its memory; with fewer, programs load steps ahead.
_MANY = 1 << 20
_STEPS_AHEAD = 8


@triton.jit(do_not_specialize=["steps", "B"], do_not_specialize_on_alignment=["totals", "reached"])
def _integrate_fire(
    current,
    membrane,
    threshold,
    spikes,
    totals,
    reached,
    synapses,
    neurons,
    B,
    steps,
    current_step,
    spikes_step,
    M,
    repeat,
    CONSTANT: tl.constexpr,
    STRICT: tl.constexpr,
    SUBTRACT: tl.constexpr,
    COUNT: tl.constexpr,
    ALIKE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    parts = tl.cdiv(neurons, BLOCK)
    b = tl.program_id(0) // parts
    here = (tl.program_id(0) % parts).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = here < neurons
    n = b.to(tl.int64) * neurons + here
    potential = tl.load(membrane + n, mask=inside, other=0.0)
    theta = tl.load(threshold + (n // repeat) % M, mask=inside, other=1.0)
    current += n
    spikes += n
    totals += b
    reached += b
    if COUNT > 1:
        behind = tl.load(synapses) if ALIKE else tl.load(synapses + here, mask=inside, other=0)
    if CONSTANT:
        drive = tl.load(current, mask=inside, other=0.0).to(potential.dtype)
    for _ in tl.range(steps, num_stages=STAGES):
        if not CONSTANT:
            drive = tl.load(current, mask=inside, other=0.0).to(potential.dtype)
            current += current_step
        potential += drive
        fired = potential > theta if STRICT else potential >= theta
        # Through float32: the interpreter has no other conversion to bfloat16.
        tl.store(spikes, fired.to(tl.float32).to(spikes.dtype.element_ty), mask=inside)
        potential = tl.where(fired, potential - theta if SUBTRACT else 0.0, potential)
        spikes += spikes_step
        if COUNT > 0:
            number = tl.sum(fired.to(tl.int32), 0)
            tl.atomic_add(totals, number, mask=number > 0, sem="relaxed")
            totals += B
        if COUNT > 1:
            # In the integers of the table, which hold the sum.
            hit = number * behind if ALIKE else tl.sum(tl.where(fired, behind, 0), 0)
            tl.atomic_add(reached, hit.to(tl.int64), mask=hit > 0, sem="relaxed")
            reached += B
    tl.store(membrane + n, potential, mask=inside)


def run(
    current_TN: Tensor,
    membrane_N: Tensor,
    threshold_M: Tensor,
    repeat: int,
    spikes_TN: Tensor,
    *,
    strict: bool,
    reset: str,
    counted: Counts | None = None,
) -> None:
    """Fill `spikes_TN` in one launch, updating `membrane_N` and what is counted in place."""
    totals, reached, synapses = counted or (None, None, None)
    B = 1 if totals is None else totals.shape[1]
    neurons = membrane_N.numel() // B
    block, stages = (MOST, 1) if membrane_N.numel() >= _MANY else (256, _STEPS_AHEAD)
    if totals is not None:
        block = min(block, max(32, triton.next_power_of_2(neurons)))
    with torch.cuda.device_of(membrane_N):
        launch(
            _integrate_fire,
            (triton.cdiv(neurons, block) * B,),
            current_TN,
            membrane_N,
            threshold_M,
            spikes_TN,
            threshold_M if totals is None else totals,
            threshold_M if reached is None else reached,
            threshold_M if synapses is None else synapses,
            neurons,
            B,
            len(spikes_TN),
            current_TN.stride(0),
            spikes_TN.stride(0),
            threshold_M.numel(),
            repeat,
            CONSTANT=current_TN.stride(0) == 0,
            STRICT=strict,
            SUBTRACT=reset == "subtract",
            COUNT=0 if totals is None else 1 if reached is None else 2,
            ALIKE=synapses is not None and synapses.numel() == 1,
            BLOCK=block,
            STAGES=stages,
        )
