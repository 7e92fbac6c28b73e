"""The errors of groups of neurons at each step, if all earlier steps had sent the activation.

Letters: T steps, B batch, C channels, `...` the rest of a sample's shape.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.group_errors import llvm, reference
from rheobase.kernels.group_fire import GroupRule

__all__ = ["group_errors"]


@torch.no_grad()
def group_errors(
    current: Tensor,
    membrane: Tensor,
    activation: Tensor,
    rule: GroupRule,
    *,
    unit: float,
    out: Tensor,
    backend: str = "auto",
) -> Tensor:
    """Add up by channel how much more than its activation each group sends at each step of a run.

    After each step, the difference goes back into the membrane: the activation takes the place of what was
    sent, and the group fires again. So each step is measured as if all earlier ones had sent the activation.

    Args:
        current: (T, B, C, ...).
        membrane: (B, C, ...), dense in any memory format; updated.
        activation: (B, C, ...).
        rule: The rule.
        unit: Each difference is truncated to a multiple of it, so that no order of summation matters.
        out: Multiples of the unit, (T, C) int64, increased.
        backend: `"auto"` for the fastest one, or `"reference"`, `"cpu"` or `"triton"`. The last two fall back
            to the reference for membranes that are not contiguous.

    Returns:
        `out`.
    """
    name = choose_backend(membrane.device, backend)
    if not membrane.numel():
        return out
    if name == "cpu" and llvm.supports(current, membrane, activation):
        llvm.run(current, membrane, activation, rule, unit, out)
    elif name == "triton" and membrane.is_contiguous():
        from rheobase.kernels.group_errors import triton

        triton.run(current, membrane, activation, rule, unit, out)
    else:
        reference.run(current, membrane, activation, rule, unit, out)
    return out
