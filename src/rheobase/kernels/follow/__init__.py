"""Counts that follow targets event by event, over all steps, and how many events that takes.

Letters: T steps, B batch, N values of a sample.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_shape
from rheobase.kernels.follow import cpu, reference

__all__ = ["follow"]


@torch.no_grad()
def follow(
    target: Tensor,
    count: Tensor,
    *,
    sizes: int | None = None,
    out: Tensor | None = None,
    fan_out: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Move counts towards their targets for T steps, and count the events.

    At each step a count that differs from its target changes by the event ±2^k with the largest 2^k that does
    not exceed the difference, k < sizes.

    Args:
        target: (T, B, ...): integers of any dtype, of at most 2^24. Any values if there are no sizes.
        count: (B, ...): the counts before the first step, updated in place.
        sizes: The number of sizes of an event; None for events of any size: the counts are the targets.
        out: Receives the counts after each step, (T, B, ...), of any dtype; it may be the target itself.
        fan_out: In the shape of one sample: the number of synapses that each value reaches, integers.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

    Returns:
        How many counts changed, (T, B) int64, and how many synapses they reached, (T, B) int64, or None
        without a fan-out.

    Raises:
        ValueError: Shapes do not fit, or the backend cannot run.
    """
    check_shape("target", target, (len(target), *count.shape))
    if out is not None:
        check_shape("out", out, tuple(target.shape))
    if fan_out is not None:
        check_shape("fan_out", fan_out, tuple(count.shape[1:]))
    if sizes is None and out is target:
        out = None  # which holds the counts already
    name = choose_backend(target.device, backend)
    if name == "reference":
        return reference.run(target, count, sizes, out, fan_out)
    if name == "cpu":
        return cpu.run(target, count, sizes, out, fan_out)
    from rheobase.kernels.follow import triton

    return triton.run(target, count, sizes, out, fan_out)
