"""The definition of counts in bins.

Letters: C channels, P signs, J bins.
"""

import torch
from torch import Tensor


def run(values: Tensor, edges: Tensor, channels: int | None, out: Tensor) -> None:
    """Increase `out`."""
    rows = values.reshape(1, -1) if channels is None else values.movedim(channels, 0).flatten(1)
    C, P, J = out.shape
    for part, counts_CJ in zip([rows, -rows][:P], out.unbind(1), strict=True):
        bins = torch.bucketize(part.contiguous(), edges, right=True)  # 0 for what lies in none
        bins += torch.arange(C, device=bins.device)[:, None] * (J + 1)
        found = torch.bincount(bins.flatten(), minlength=C * (J + 1))
        counts_CJ += found.view(C, J + 1)[:, 1:]
