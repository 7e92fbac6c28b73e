"""The definition of integrate-and-fire: one step after another, as it is written in papers."""

import torch
from torch import Tensor


def run(
    current: Tensor, membrane: Tensor, threshold: Tensor, spikes: Tensor, *, strict: bool, reset: str
) -> None:
    """Fill `spikes` step by step, updating `membrane` in place."""
    constant = current.dim() == membrane.dim()
    potential = membrane.clone()
    for t in range(len(spikes)):
        potential = potential + (current if constant else current[t])
        fired = potential > threshold if strict else potential >= threshold
        after = potential - threshold if reset == "subtract" else torch.zeros_like(potential)
        potential = torch.where(fired, after, potential)
        spikes[t] = fired
    membrane.copy_(potential)
