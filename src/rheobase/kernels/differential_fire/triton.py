"""Differential coding in Triton: a program owns a block of neurons and keeps their state in registers.

Letters: T steps, N all neurons of the batch, M distinct values of a parameter.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch
from rheobase.kernels.rows import flat_out, flat_states, flat_steps, flat_table

_BLOCK = 512


@triton.jit(do_not_specialize=["before", "steps"])
def _differential_fire(
    current,
    membrane,
    mean,
    table,
    inverse,
    out,
    events,
    neurons,
    before,
    steps,
    current_step,
    out_step,
    events_step,
    M,
    repeat,
    SIZES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < neurons
    row = table + (n // repeat) % M
    theta = tl.load(row, mask=inside, other=1.0)
    most = tl.load(row + M, mask=inside, other=0.0) + 1e-6
    amplitude = tl.load(row + 2 * M, mask=inside, other=0.0)
    potential = tl.load(membrane + n, mask=inside, other=0.0)
    assumed = tl.load(mean + n, mask=inside, other=0.0)
    current += n
    out += n
    events += n
    for t in range(before, before + steps):
        share = tl.load(inverse + t - before)  # 1/t
        arrived = potential + tl.load(current, mask=inside, other=0.0).to(potential.dtype)
        arrived -= assumed * theta
        event = tl.zeros_like(potential)
        for j in tl.static_range(SIZES):
            size = 1.0 / (1 << (SIZES - 1 - j))
            up = (arrived >= 0.75 * size * theta) & (assumed + size * share <= most)
            down = (arrived <= -0.75 * size * theta) & (t * assumed >= size * (1 - 1e-6))
            event = tl.where(up, size, tl.where(down, -size, event))
        event = tl.where(t > 0, event, 0.0)
        potential = tl.where(t > 0, arrived - event * theta, potential)
        tl.store(out, ((assumed + event) * amplitude).to(out.dtype.element_ty), mask=inside)
        tl.store(events, (event != 0).to(tl.int32).to(events.dtype.element_ty), mask=inside)
        assumed += event * share
        current += current_step
        out += out_step
        events += events_step
    tl.store(membrane + n, potential, mask=inside)
    tl.store(mean + n, assumed, mask=inside)


def run(
    current: Tensor,
    membrane: Tensor,
    mean: Tensor,
    threshold: Tensor,
    most: Tensor,
    amplitude: Tensor,
    sizes: int,
    out: Tensor,
    events: Tensor,
    before: int,
) -> None:
    """Fill `out` and `events` in one launch, updating `membrane` and `mean` in place."""
    table, repeat = flat_table([threshold, most, amplitude], membrane)
    membrane_N, mean_N = flat_states(membrane, mean)
    steps = len(out)
    current_TN = flat_steps(current, membrane, steps)
    out_TN, events_TN = flat_out(out, membrane), flat_out(events, membrane)
    # A product with a power of two is exact, so that no division is needed.
    inverse = 1 / torch.arange(before, before + steps, dtype=torch.float64, device=membrane.device).clamp(1)
    with torch.cuda.device_of(membrane):
        launch(
            _differential_fire,
            (triton.cdiv(membrane.numel(), _BLOCK),),
            current_TN,
            membrane_N,
            mean_N,
            table,
            inverse.to(membrane.dtype),
            out_TN,
            events_TN,
            membrane.numel(),
            before,
            steps,
            current_TN.stride(0),
            out_TN.stride(0),
            events_TN.stride(0),
            table.shape[1],
            repeat,
            SIZES=sizes,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,  # as products are rounded in the reference
        )
