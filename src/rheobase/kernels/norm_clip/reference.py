"""The definition of a batch norm in training with a sum and a clip."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.norm_clip.statistics import Statistics

SMALLEST = 1e-3
"""The smallest threshold of a quantised clip."""


def run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    added: Tensor | None,
    offset: Tensor | None,
    threshold: Tensor | None,
    levels: int,
    rectify: bool,
) -> Tensor:
    """Compute, as `norm_clip` says."""
    shifted = x.float()
    if offset is not None:
        shifted = shifted + offset.view(-1, *[1] * (x.dim() - 2))
    statistics.batches.add_(1)
    z = F.batch_norm(
        shifted,
        statistics.mean,
        statistics.variance,
        weight,
        bias,
        training=True,
        momentum=statistics.momentum,
        eps=statistics.epsilon,
    )
    z = z if added is None else z + added.float()
    return clip(z, threshold, levels, rectify).to(x.dtype)


def clip(z: Tensor, threshold: Tensor | None, levels: int, rectify: bool) -> Tensor:
    """The clip by itself."""
    if not rectify:
        return z
    if threshold is None:
        return torch.relu(z)
    if not levels:
        return torch.where(z > threshold, threshold, torch.relu(z))
    top = threshold.detach().clamp(min=SMALLEST) + (threshold - threshold.detach())
    quantum = top / levels
    share = torch.where(z >= top, top, torch.relu(z)) / quantum + 0.5
    return (share + (share.floor() - share).detach()) * quantum
