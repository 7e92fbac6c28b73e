"""A linear layer whose output drives integrate-and-fire neurons, as one operation over all steps.

Letters: T steps, B batch, C input features, N neurons.
"""

from torch import Tensor

from rheobase.kernels.checks import check_threshold
from rheobase.kernels.conv_integrate_fire import conv_integrate_fire
from rheobase.kernels.conv_integrate_fire.tiles import Tile

__all__ = ["linear_integrate_fire"]


def linear_integrate_fire(
    spikes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    membrane: Tensor,
    threshold: Tensor,
    *,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
    strict: bool = False,
    reset: str = "subtract",
    out: Tensor | None = None,
    totals: Tensor | None = None,
    tile: Tile | None = None,
    backend: str = "auto",
) -> Tensor:
    """Apply a linear layer to spikes and run the integrate-and-fire neurons it drives, for T steps.

    It is `conv_integrate_fire` over images of one pixel, and takes the same arguments without the image axes.

    Args:
        spikes: (T, B, C).
        weight: (N, C).
        bias: (N,) or None.
        membrane: (B, N), updated in place.
        threshold: Broadcastable to (N,).
        residual: (T, B, N) or (B, N).
        residual_scale: (N,).
        strict: As in `conv_integrate_fire`, and so all further arguments.
        reset: `"subtract"` or `"zero"`.
        out: (T, B, N), to be overwritten.
        totals: (T, B) int32.
        tile: How the fused kernel is cut.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

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
        residual_scale=residual_scale,
        strict=strict,
        reset=reset,
        out=None if out is None else out[..., None, None],
        totals=totals,
        tile=tile,
        backend=backend,
    )
    return fired[..., 0, 0] if out is None else out
