"""The definition of counts that follow targets."""

import torch
from torch import Tensor

from rheobase.kernels.backends import widest_float


def run(
    target: Tensor, count: Tensor, sizes: int | None, out: Tensor | None, fan_out: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Move and count, as `follow` says."""
    T, B = target.shape[:2]
    events = torch.zeros(T, B, dtype=torch.int64, device=target.device)
    reached = None if fan_out is None else torch.zeros_like(events)
    wide = widest_float(target.device)  # counts with sizes are integers, which single precision holds too
    for t in range(T):
        difference = target[t].to(wide) - count.to(wide)
        event = difference
        if sizes is not None:
            event = torch.zeros_like(difference)
            for k in range(sizes):
                event = torch.where(difference.abs() >= 2**k, 2.0**k, event)
            event = event * difference.sign()
        count.copy_(target[t] if sizes is None else count.to(wide) + event)
        changed = (event != 0).flatten(1).long()
        events[t] = changed.sum(1)
        if reached is not None and fan_out is not None:
            reached[t] = (changed * fan_out.flatten().long()).sum(1)
        if out is not None:
            out[t] = count
    return events, reached
