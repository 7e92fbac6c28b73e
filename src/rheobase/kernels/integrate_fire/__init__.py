"""Integrate-and-fire over time: from currents to spikes.

Letters: T steps, B batch, `...` a sample's shape; N all neurons of the batch, in the membrane's memory order.
"""

from functools import partial

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import (
    check_counts,
    check_device,
    check_dtype,
    check_reset,
    check_shape,
    check_threshold,
)
from rheobase.kernels.integrate_fire import llvm, reference
from rheobase.kernels.integrate_fire.layout import flatten, flatten_counts
from rheobase.kernels.kept import keep
from rheobase.kernels.routines import report_routine
from rheobase.kernels.rows import empty_steps

__all__ = ["integrate_fire"]

SPIKE_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8)


@torch.no_grad()
def integrate_fire(
    current: Tensor,
    membrane: Tensor,
    threshold: Tensor,
    *,
    steps: int,
    strict: bool = False,
    reset: str = "subtract",
    out: Tensor | None = None,
    totals: Tensor | None = None,
    reached: Tensor | None = None,
    fan_out: Tensor | None = None,
    backend: str = "auto",
) -> Tensor:
    """Run integrate-and-fire neurons for a number of steps.

    Each step adds the current to the membrane, fires where the potential reaches the threshold, and resets
    the neurons that fired. All arithmetic is in the membrane's dtype. No gradient flows through it.

    Args:
        current: (T, B, ...), one slice a step; or (B, ...), the same current every step, which is never
            repeated in memory. Floating point, no wider than the membrane, or int32 for a float64 one.
        membrane: (B, ...) float32 or float64, dense in any memory format. Updated in place to the potential
            after the last step, so that calls over consecutive chunks of time chain.
        threshold: Broadcastable to a sample's shape: `()`, `(C, 1, 1)`, `(C, H, W)`, `(N,)`. The largest
            finite value silences a neuron.
        steps: Number of steps T.
        strict: Fire where the potential exceeds the threshold, instead of where it reaches it.
        reset: `"subtract"` subtracts the threshold from a neuron that fired; `"zero"` sets its potential to
            zero.
        out: Spikes of an earlier call, to be overwritten: (T, B, ...) with the membrane's memory format,
            dtype float32, float64, float16, bfloat16 or uint8.
        totals: (T, B) int32, increased by the number of spikes of each sample at each step.
        reached: (T, B) int64, increased by the number of synapses that these spikes reach.
        fan_out: In the shape of one sample: the number of synapses behind each neuron; integers.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`; `choose_backend` says what `"auto"` means.

    Returns:
        (T, B, ...) spikes, 0 or 1: `out` if given, else float32.

    Raises:
        TypeError: A dtype is not one of those named above.
        ValueError: A shape, device, memory format, reset or backend does not fit; nothing has been changed.
    """
    name = choose_backend(membrane.device, backend)
    _check(current, membrane, threshold, steps, reset, out)
    counted = (totals, reached, fan_out)
    check_counts(*counted, (steps, *membrane.shape))
    check_device(membrane.device, totals=totals, reached=reached, fan_out=fan_out)
    # A cast that overflows, or an infinite threshold, would become 0·∞ in the fast versions.
    kind = membrane.dtype
    clamp = partial(threshold.to(kind).clamp, max=torch.finfo(kind).max)
    threshold = keep(threshold, kind, clamp) if name == "cpu" else clamp()
    spikes = empty_steps(membrane, steps, torch.float32) if out is None else out
    if membrane.numel() == 0:
        return spikes
    if name == "reference" or (name == "cpu" and not llvm.supports(current, membrane, spikes)):
        report_routine("reference scan")
        reference.run(current, membrane, threshold, spikes, strict=strict, reset=reset)
        reference.count(spikes, *counted)
        return spikes
    flat = flatten(current, membrane, threshold, spikes)
    if name == "cpu":
        report_routine("llvm scan")
        llvm.run(*flat, strict=strict, reset=reset)
        reference.count(spikes, *counted)
    else:
        from rheobase.kernels.integrate_fire import triton

        report_routine("triton scan")
        rows = None if totals is None else flatten_counts(membrane, totals, reached, fan_out)
        triton.run(*flat, strict=strict, reset=reset, counted=rows)
        if totals is not None and rows is None:
            reference.count(spikes, *counted)
    return spikes


def _check(
    current: Tensor, membrane: Tensor, threshold: Tensor, steps: int, reset: str, out: Tensor | None
) -> None:
    if steps < 1:
        raise ValueError(f"steps is {steps}: expected at least 1")
    check_reset(reset)
    if membrane.dim() < 1:
        raise ValueError("membrane has no batch dimension: expected (B, ...)")
    check_dtype("membrane", membrane, (torch.float32, torch.float64))
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    check_dtype("current", current, floats[:3] if membrane.dtype == torch.float32 else (*floats, torch.int32))
    check_dtype("threshold", threshold, floats)
    check_shape("current", current, (steps, *membrane.shape), tuple(membrane.shape))
    check_threshold(threshold, tuple(membrane.shape[1:]))
    if out is not None:
        check_dtype("out", out, SPIKE_DTYPES)
        check_shape("out", out, (steps, *membrane.shape))
    check_device(membrane.device, current=current, threshold=threshold, out=out)
