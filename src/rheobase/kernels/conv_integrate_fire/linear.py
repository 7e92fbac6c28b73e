"""A linear layer whose output drives integrate-and-fire neurons, as one operation over all steps.

Letters: T steps, B batch, C input features, N neurons.
"""

from typing import Any

from torch import Tensor

from rheobase.kernels.checks import check_threshold
from rheobase.kernels.conv_integrate_fire import conv_integrate_fire

__all__ = ["linear_integrate_fire"]


def linear_integrate_fire(
    spikes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    membrane: Tensor,
    threshold: Tensor,
    *,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    fan_out: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """Apply a linear layer to spikes and run the integrate-and-fire neurons it drives, for T steps.

    It is `conv_integrate_fire` over images of one pixel.

    Args:
        spikes: (T, B, C).
        weight: (N, C).
        bias: (N,) or None.
        membrane: (B, N), updated in place.
        threshold: Broadcastable to (N,).
        residual: (T, B, N) or (B, N).
        out: (T, B, N), to be overwritten.
        fan_out: (N,).
        options: Further arguments of `conv_integrate_fire`.

    Returns:
        (T, B, N) spikes, 0 or 1: `out` if given, else uint8.

    Raises:
        TypeError: A dtype does not fit.
        ValueError: A shape, device, reset or backend does not fit; nothing has been changed.
    """
    if spikes.dim() != 3 or weight.dim() != 2:
        raise ValueError(
            f"spikes has shape {tuple(spikes.shape)} and weight {tuple(weight.shape)}: "
            "expected (T, B, C) and (N, C)"
        )
    check_threshold(threshold, (len(weight),))
    fired = conv_integrate_fire(
        spikes[..., None, None],
        weight[..., None, None],
        bias,
        membrane[..., None, None],
        threshold[..., None, None],
        residual=None if residual is None else residual[..., None, None],
        out=None if out is None else out[..., None, None],
        fan_out=None if fan_out is None else fan_out[..., None, None],
        **options,
    )
    return fired[..., 0, 0] if out is None else out
