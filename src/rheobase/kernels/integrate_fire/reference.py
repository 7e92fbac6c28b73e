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


def count(spikes: Tensor, totals: Tensor | None, reached: Tensor | None, fan_out: Tensor | None) -> None:
    """Add up the spikes of each sample at each step, and the synapses that they reach, if wanted."""
    if totals is None:
        return
    for t, sent in enumerate(spikes):
        fired_BN = sent.reshape(len(sent), -1) != 0
        totals[t] += fired_BN.sum(1)
        if reached is not None and fan_out is not None:
            reached[t] += (fired_BN * fan_out.flatten().long()).sum(1)
