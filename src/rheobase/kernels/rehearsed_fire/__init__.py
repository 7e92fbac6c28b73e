"""Neurons that start again with what they learned in a rehearsal, over time: from currents to spikes.

Letters: T steps, B batch, `...` a sample's shape.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.rehearsed_fire import reference
from rheobase.kernels.rehearsed_fire.rule import RehearsedRule
from rheobase.kernels.routines import report_routine

__all__ = ["RehearsedRule", "rehearsed_fire"]


def begin(membrane: Tensor, shifts: bool) -> dict[str, Tensor]:
    """What neurons keep besides their membrane, before the first step."""
    if not shifts:
        return {"start": membrane.clone(), "factor": torch.ones_like(membrane)}
    none = torch.full_like(membrane, torch.inf)
    return {"start": membrane.clone(), "silent": -none, "firing": none}


@torch.no_grad()
def rehearsed_fire(
    current: Tensor,
    membrane: Tensor,
    memory: dict[str, Tensor],
    rule: RehearsedRule,
    *,
    out: Tensor,
    before: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Run neurons with a rehearsal for a number of steps.

    Args:
        current: (T, B, ...), or (B, ...) if it is the same at every step.
        membrane: (B, ...), dense in any memory format; updated.
        memory: Kept by the caller from call to call, empty before the first step of a run; updated.
        rule: The rule.
        out: Where to write what is sent, (T, B, ...), in the membrane's memory format.
        before: The number of steps before these.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        `out`.
    """
    if not memory:
        memory.update(begin(membrane, rule.shifts))
    if choose_backend(membrane.device, backend, offered=("reference", "triton")) == "triton":
        from rheobase.kernels.rehearsed_fire import triton

        report_routine("triton rehearsal")
        triton.run(current, membrane, memory, rule, out, before)
    else:
        reference.run(current, membrane, memory, rule, out, before)
    return out
