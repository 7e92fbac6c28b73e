"""Sums of currents, rounded to the counts that follow them event by event, over all steps.

Letters: T steps, B batch, N values of a sample.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_shape
from rheobase.kernels.encode.rounding import Rounding

__all__ = ["Rounding", "encode"]


@torch.no_grad()
def encode(
    current: Tensor,
    count: Tensor,
    rounding: Rounding,
    *,
    sizes: int | None = None,
    out: Tensor,
    fan_out: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Round to targets, and let the counts follow them as `follow` does.

    Args:
        current: (T, B, ...), the sums of currents up to each step, with any strides. Integers if the rounding
            has a scale.
        count: (B, ...): the counts before the first step, updated in place.
        rounding: From a sum to its target.
        sizes: As in `follow`.
        out: Receives the counts after each step, (T, B, ...), of any dtype; it may be the currents.
        fan_out: As in `follow`.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Returns:
        As `follow`.

    Raises:
        ValueError: Shapes do not fit, or the backend cannot run or has no such rounding.
    """
    check_shape("current", current, (len(current), *count.shape))
    check_shape("out", out, tuple(current.shape))
    if fan_out is not None:
        check_shape("fan_out", fan_out, tuple(count.shape[1:]))
    name = choose_backend(current.device, backend, offered=("reference", "triton"))
    if backend == "triton" and not rounding.compiled:
        raise ValueError(
            f"the Triton kernel has no {rounding.name} of {rounding.quantum.dtype}"
            f"{'' if rounding.parameter is None else ' with a parameter'}: pass backend='auto'"
        )
    if name == "triton" and rounding.compiled:
        from rheobase.kernels.encode import triton

        return triton.run(current, count, rounding, sizes, out, fan_out)
    from rheobase.kernels.encode import reference

    return reference.run(current, count, rounding, sizes, out, fan_out)
