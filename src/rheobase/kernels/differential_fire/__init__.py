"""Neurons of differential coding over time: from currents to the changes of a mean.

Letters: T steps, B batch, `...` a sample's shape.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.differential_fire import reference
from rheobase.kernels.routines import report_routine

__all__ = ["differential_fire"]


@torch.no_grad()
def differential_fire(
    current: Tensor,
    membrane: Tensor,
    mean: Tensor,
    threshold: Tensor,
    *,
    sizes: int,
    bound: Tensor | None,
    amplitude: Tensor,
    out: Tensor,
    events: Tensor,
    before: int = 0,
    backend: str = "auto",
) -> Tensor:
    """Run neurons of differential coding for a number of steps; nothing is sent at the first step of a run.

    Args:
        current: (T, B, ...), or (B, ...) if it is the same at every step.
        membrane: (B, ...), dense in any memory format; updated.
        mean: What receivers assume in units of the threshold, like the membrane; updated.
        threshold: The largest event, broadcastable to the membrane.
        sizes: The number of sizes of an event.
        bound: The largest mean in units of the threshold, broadcastable; None for none.
        amplitude: The value of an event of size 1, broadcastable.
        out: Where to write the mean before each step plus its event, (T, B, ...), in the membrane's memory
            format.
        events: Where to write 1 for each event, (T, B, ...).
        before: The number of steps before these.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        `out`.
    """
    most = torch.full_like(threshold, torch.inf) if bound is None else bound
    if choose_backend(membrane.device, backend, offered=("reference", "triton")) == "triton":
        from rheobase.kernels.differential_fire import triton

        report_routine("triton differences")
        triton.run(current, membrane, mean, threshold, most, amplitude, sizes, out, events, before)
    else:
        reference.run(current, membrane, mean, threshold, most, amplitude, sizes, out, events, before)
    return out
