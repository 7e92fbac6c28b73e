"""Groups of members that share a membrane, over time: from currents to what they send.

Letters: T steps, B batch, `...` a sample's shape.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.group_fire import llvm, reference
from rheobase.kernels.group_fire.rule import GroupRule, Trace
from rheobase.kernels.routines import report_routine

__all__ = ["GroupRule", "Trace", "group_backward", "group_fire"]


@torch.no_grad()
def group_fire(
    current: Tensor,
    membrane: Tensor,
    sent: Tensor,
    rule: GroupRule,
    *,
    out: Tensor,
    events: Tensor | None = None,
    before: int = 0,
    trace: Trace | None = None,
    backend: str = "auto",
) -> Tensor:
    """Run groups for a number of steps.

    Args:
        current: (T, B, ...), or (B, ...) if it is the same at every step.
        membrane: (B, ...), dense in any memory format; updated.
        sent: What was sent before, net, in units of the amplitude, like the membrane; updated.
        rule: The rule.
        out: Where to write what is sent, (T, B, ...), in the membrane's memory format.
        events: Where to write the number of members that fired, (T, B, ...), if it is wanted.
        before: The number of steps before these.
        trace: Where to write what gradients need, if they are wanted.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

    Returns:
        `out`.
    """
    name = choose_backend(membrane.device, backend)
    if not out.numel():
        return out
    if name == "cpu" and trace is None and llvm.supports(current, membrane, sent, out, events):
        report_routine("llvm groups")
        llvm.run(current, membrane, sent, rule, out, events, before)
    elif name == "triton":
        from rheobase.kernels.group_fire import triton

        report_routine("triton groups")
        triton.run(current, membrane, sent, rule, out, events, before, trace)
    else:
        reference.run(current, membrane, sent, rule, out, events, before, trace)
    return out


@torch.no_grad()
def group_backward(
    from_out: Tensor,
    later: Tensor,
    trace: Trace,
    rule: GroupRule,
    *,
    slope: Callable[[Tensor], Tensor],
    height: float | None = None,
    before: int = 0,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `group_fire`; resets are constants, and a surrogate gives the slope of firing.

    Args:
        from_out: The gradient with respect to what was sent, (T, B, ...).
        later: The gradient with respect to the membrane after the last step, (B, ...).
        trace: What the run wrote.
        rule: The rule.
        slope: The slope of firing over u/level, given u/level − 1; that of taking a spike back over −u/level,
            given −u/level − λ.
        height: h, if the slope is h·max(0, 1 − |u/level − 1|), which the Triton kernel can compute.
        before: The number of steps before these.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        The gradients with respect to the currents (T, B, ...), the membrane before the first step (B, ...),
        and the threshold of each neuron (B, ...).
    """
    name = choose_backend(later.device, backend, offered=("reference", "triton"))
    if name == "triton" and height is not None:
        from rheobase.kernels.group_fire import triton

        return triton.backward(from_out, later, trace, rule, height, before)
    return reference.backward(from_out, later, trace, rule, slope, before)
