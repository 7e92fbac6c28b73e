"""Starts that are the same for every sample, as numbers."""

import torch
from torch import Tensor

from rheobase.network import Constant, Corrected, Initial, Neuron, Potential, along_channels


def is_fixed(initial: Initial) -> bool:
    """Whether a start is the same for every sample."""
    if isinstance(initial, Corrected):
        return is_fixed(initial.start)
    return isinstance(initial, (Constant, Potential))


def start_of(neuron: Neuron, shape: tuple[int, ...]) -> Tensor:
    """The potential of one sample's neurons before the first step, for a start that is fixed."""
    return neuron.start(torch.Size((1, *shape)), 0, 0)[0]


def channelwise(values: Tensor, channels: int) -> Tensor | None:
    """Values of one sample as one per channel, where they do not differ within any."""
    rows = values.reshape(channels, -1)
    return rows[:, 0].clone() if bool((rows == rows[:, :1]).all()) else None


def unit_start(neuron: Neuron, shape: tuple[int, ...]) -> Initial:
    """The start of a neuron in units of its threshold; one that never fires starts at zero."""
    if isinstance(neuron.initial, Constant) and not neuron.dead.any():
        return neuron.initial
    dims = len(shape) + 1
    threshold = along_channels(neuron.threshold, dims)
    share = start_of(neuron, shape)[None].double() / threshold.double()
    share = torch.where(along_channels(neuron.dead, dims), 0.0, share)[0].float()
    per_channel = channelwise(share, shape[0])
    return Potential(share if per_channel is None else per_channel)
