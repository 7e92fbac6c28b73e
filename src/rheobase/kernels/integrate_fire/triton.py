"""Integrate-and-fire in Triton: a program owns a block of neurons and keeps their membrane in registers.

Letters: T steps, N all neurons of the batch, M distinct thresholds.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

# With this many neurons a GPU hides the latency of its memory; with fewer, programs load steps ahead.
_MANY = 1 << 20
_STEPS_AHEAD = 8


@triton.jit(do_not_specialize=["steps"])
def _integrate_fire(
    current,
    membrane,
    threshold,
    spikes,
    neurons,
    steps,
    current_step,
    spikes_step,
    M,
    repeat,
    STRICT: tl.constexpr,
    SUBTRACT: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < neurons
    potential = tl.load(membrane + n, mask=inside, other=0.0)
    theta = tl.load(threshold + (n // repeat) % M, mask=inside, other=1.0)
    current += n
    spikes += n
    for _ in tl.range(steps, num_stages=STAGES):
        potential += tl.load(current, mask=inside, other=0.0).to(potential.dtype)
        fired = potential > theta if STRICT else potential >= theta
        # Through float32: the interpreter has no other conversion to bfloat16.
        tl.store(spikes, fired.to(tl.float32).to(spikes.dtype.element_ty), mask=inside)
        potential = tl.where(fired, potential - theta if SUBTRACT else 0.0, potential)
        current += current_step
        spikes += spikes_step
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
) -> None:
    """Fill `spikes_TN` in one launch, updating `membrane_N` in place."""
    neurons = membrane_N.numel()
    block, stages = (1024, 1) if neurons >= _MANY else (256, _STEPS_AHEAD)
    with torch.cuda.device_of(membrane_N):
        launch(
            _integrate_fire,
            (triton.cdiv(neurons, block),),
            current_TN,
            membrane_N,
            threshold_M,
            spikes_TN,
            neurons,
            len(spikes_TN),
            current_TN.stride(0),
            spikes_TN.stride(0),
            threshold_M.numel(),
            repeat,
            STRICT=strict,
            SUBTRACT=reset == "subtract",
            BLOCK=block,
            STAGES=stages,
        )
