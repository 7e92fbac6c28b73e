"""The definition of changes of maxima of sums."""

import torch
import torch.nn.functional as F
from torch import Tensor


def run(
    counts: Tensor, total: Tensor, window: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Compute, as `max_of_sums` says."""
    sums = torch.cat([total[None], counts.cumsum(0, dtype=total.dtype).add_(total)])
    total.copy_(sums[-1])
    maxima = F.max_pool2d(sums.flatten(0, 1), window, stride, padding)
    return maxima.view(*sums.shape[:2], *maxima.shape[1:]).diff(dim=0).to(counts.dtype)
