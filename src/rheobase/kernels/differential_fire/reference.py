"""The definition of differential coding: one step after another."""

import torch
from torch import Tensor


def run(
    current: Tensor,
    membrane: Tensor,
    mean: Tensor,
    threshold: Tensor,
    most: Tensor,
    amplitude: Tensor,
    sizes: int,
    out: Tensor,
    events: Tensor,
    before: int,
) -> None:
    """Fill `out` and `events` step by step, updating `membrane` and `mean` in place."""
    constant = current.dim() == membrane.dim()
    for t in range(before, before + len(out)):
        if t == 0:
            out[0] = 0
            events[0] = 0
            continue
        membrane += current if constant else current[t - before]
        membrane -= mean * threshold
        event = torch.zeros_like(membrane)
        for k in reversed(range(sizes)):
            size = 2.0**-k
            up = (membrane >= 0.75 * size * threshold) & (mean + size / t <= most + 1e-6)
            down = (membrane <= -0.75 * size * threshold) & (t * mean >= size * (1 - 1e-6))
            event = torch.where(up, size, torch.where(down, -size, event))
        membrane -= event * threshold
        torch.mul(mean + event, amplitude, out=out[t - before])
        torch.ne(event, 0, out=events[t - before])
        mean += event / t
