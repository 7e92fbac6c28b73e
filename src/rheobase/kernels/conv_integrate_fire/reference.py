"""The definition of a convolution that drives integrate-and-fire neurons, one step after another.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def run(
    spikes: Tensor,
    weight: Tensor,
    membrane: Tensor,
    out: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    threshold: Tensor,
    residual_scale: Tensor | None,
    *,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    totals: Tensor | None,
    strict: bool,
    reset: str,
) -> None:
    """Fill `out` (T, B, N, Y, X) step by step, updating `membrane` and `totals` in place."""
    # Integers are convolved as float64, which holds every product and sum of them.
    working = torch.float32 if membrane.is_floating_point() else torch.float64
    potential = membrane.clone()
    for t in range(len(spikes)):
        current = F.conv2d(spikes[t].to(working), weight.to(working), None, stride, padding, dilation, groups)
        potential = potential + current.to(membrane.dtype)
        if bias is not None:
            potential = potential + bias[:, None, None]
        if residual is not None:
            extra = (residual if residual.dim() == membrane.dim() else residual[t]).to(membrane.dtype)
            potential = potential + (
                extra if residual_scale is None else extra * residual_scale[:, None, None]
            )
        fired = potential > threshold if strict else potential >= threshold
        after = potential - threshold if reset == "subtract" else torch.zeros_like(potential)
        potential = torch.where(fired, after, potential)
        out[t] = fired
        if totals is not None:
            totals[t] += fired.flatten(1).sum(1)
    membrane.copy_(potential)
