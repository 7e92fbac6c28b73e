"""Profiles: the arithmetic of a simulation.

- `exact`: the network's own precision, without TF32. On a GPU float32 weights are two half-precision parts.
- `fast`: weights in half precision, membranes in single.
- `int8`: every weight a whole number of eight bits with one scale for each output channel, and thresholds,
  biases and membranes whole numbers of the same scale. Sums of whole numbers have no rounding: the spikes
  are the same on every device, for every batch and every chunk.

What lies before the first neurons or behind the last is in the network's precision in every profile, and so
is what no fused kernel does: connections in groups, dilated, transposed, padded otherwise than with a number
of zeros, or over other than two dimensions. The notes of a run name them.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

PROFILES = ("exact", "fast", "int8")


class Profile(ABC):
    """How the numbers of a layer are kept.

    Attributes:
        name: One of `PROFILES`.
        counts: What spikes and pooled counts are kept in.
        splits: Whether currents may be rounded to the precision of weights on their way to the neurons.
    """

    name: str
    counts: torch.dtype
    splits: bool

    @abstractmethod
    def gain(self, weight: Tensor, others: Tensor) -> Tensor | None:
        """The factors, one for each output channel, that a layer's numbers are kept multiplied by.

        Args:
            weight: The weights.
            others: The largest of each channel's other numbers: threshold, bias, factor; above zero.
        """

    @abstractmethod
    def weight(self, weight: Tensor, gain: Tensor | None) -> Tensor:
        """Weights for the fused kernel."""

    @abstractmethod
    def number(self, values: Tensor, gain: Tensor | None) -> Tensor:
        """A threshold, bias, factor or potential; `gain` in its shape."""

    @abstractmethod
    def current(self, values: Tensor, gain: Tensor | None) -> Tensor:
        """A current; `gain` in its shape."""


class Floating(Profile):
    """Weights of some precision, membranes in single."""

    def __init__(self, name: str, precision: torch.dtype, counts: torch.dtype) -> None:
        self.name, self.precision, self.counts = name, precision, counts
        self.splits = precision != torch.float32

    def gain(self, weight: Tensor, others: Tensor) -> None:
        return None

    def weight(self, weight: Tensor, gain: Tensor | None) -> Tensor:
        form = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
        return weight.to(self.precision).contiguous(memory_format=form)

    def number(self, values: Tensor, gain: Tensor | None) -> Tensor:
        return values.float().contiguous()

    def current(self, values: Tensor, gain: Tensor | None) -> Tensor:
        return values


class Integer(Profile):
    """Whole numbers."""

    name = "int8"
    counts = torch.uint8
    splits = False

    _LARGEST = 2**30
    # Thousands of biases as large as this can be added up before a membrane is full.
    _ROOM = 2**20

    def gain(self, weight: Tensor, others: Tensor) -> Tensor:
        # Weights of zero, or next to it, leave the scale to the channel's other numbers.
        return torch.minimum(127 / weight.flatten(1).abs().amax(1), self._ROOM / others)

    def weight(self, weight: Tensor, gain: Tensor | None) -> Tensor:
        form = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
        return self._whole(weight, gain).to(torch.int8).contiguous(memory_format=form)

    def number(self, values: Tensor, gain: Tensor | None) -> Tensor:
        assert gain is not None
        scaled = (values.double() * gain.double()).round()
        return scaled.clamp(-self._LARGEST, self._LARGEST).to(torch.int32).contiguous()

    def current(self, values: Tensor, gain: Tensor | None) -> Tensor:
        assert gain is not None
        return (values * gain).round().to(torch.int32)

    @staticmethod
    def _whole(weight: Tensor, gain: Tensor | None) -> Tensor:
        assert gain is not None
        return (weight * gain.view(-1, *[1] * (weight.dim() - 1))).round().clamp(-127, 127)


def find_profile(name: str, device: torch.device) -> Profile:
    """The profile of a name as it is on a device.

    Raises:
        ValueError: There is no such profile.
    """
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}: choose from {', '.join(PROFILES)}")
    if name == "int8":
        return Integer()
    on_gpu = device.type == "cuda"
    precision = torch.float32 if name == "exact" else torch.float16 if on_gpu else torch.bfloat16
    return Floating(name, precision, torch.float16 if on_gpu else torch.uint8)
