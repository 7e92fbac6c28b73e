"""Profiles: the arithmetic of a simulation.

- `exact`: the network's own precision, without TF32. On a GPU float32 weights are two half-precision parts.
- `fast`: weights in half precision, membranes in single.
- `int8`: weights are 8-bit integers with one scale per output channel; thresholds, biases and membranes are
  integers of the same scale. Integer sums have no rounding: equal spikes into a layer give equal spikes out
  of it on every device, for every batch and every chunk.

What precedes the first neurons or follows the last is in the network's precision in every profile. So are
connections that no fused kernel computes: with groups, dilation, padding other than a number of zeros,
transposed, or not over two dimensions. The notes of a run name them. In the sum code, linear layers of any
shape and products of two signals are computed as products of counts, in `fast` on a CPU in single precision.
Between neurons for few steps, which have no fused kernel, `fast` rounds weights and currents to half
precision on a GPU.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rheobase.kernels import widen
from rheobase.simulation.device import device_traits

PROFILES = ("exact", "fast", "int8")


class Profile(ABC):
    """How the numbers of a fused layer are stored.

    Attributes:
        name: One of `PROFILES`.
        counts: The dtype of spikes and pooled counts.
        same_bits: Whether a fused layer must give what its calls give one by one, to the bit.
        splits: Whether currents may be rounded to the precision of the weights before the neurons add them.
    """

    name: str
    counts: torch.dtype
    splits: bool
    same_bits: bool = False

    @abstractmethod
    def gain(self, weight: Tensor, others: Tensor, drive: Tensor) -> Tensor | None:
        """The factors, one per output channel, by which the numbers of a layer are multiplied.

        Args:
            weight: The weights.
            others: The largest of each channel's other numbers: threshold, bias, factor; above zero.
            drive: A bound on the current of each channel at one step.
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
    """Weights of a given precision, membranes in single precision."""

    def __init__(
        self, name: str, precision: torch.dtype, counts: torch.dtype, same_bits: bool = False
    ) -> None:
        self.name, self.precision, self.counts, self.same_bits = name, precision, counts, same_bits
        self.splits = precision != torch.float32

    def gain(self, weight: Tensor, others: Tensor, drive: Tensor) -> None:
        return None

    def weight(self, weight: Tensor, gain: Tensor | None) -> Tensor:
        form = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
        return weight.to(self.precision).contiguous(memory_format=form)

    def number(self, values: Tensor, gain: Tensor | None) -> Tensor:
        return values.float().contiguous()

    def current(self, values: Tensor, gain: Tensor | None) -> Tensor:
        return values.float()


class Integer(Profile):
    """Integers."""

    name = "int8"
    counts = torch.uint8
    splits = False

    _LARGEST = 2**30
    _ROOM = 2**20

    def __init__(self, steps: int = 1) -> None:
        """Prepare for runs of up to the given number of steps: no membrane overflows in them."""
        self.steps = steps

    def gain(self, weight: Tensor, others: Tensor, drive: Tensor) -> Tensor:
        # If the weights are zero or tiny, the channel's other numbers set the scale.
        fine = torch.minimum(127 / weight.flatten(1).abs().amax(1), self._ROOM / others)
        return torch.minimum(fine, self._LARGEST / (self.steps * drive))

    def weight(self, weight: Tensor, gain: Tensor | None) -> Tensor:
        form = torch.channels_last if weight.dim() == 4 else torch.contiguous_format
        return self._round(weight, gain).to(torch.int8).contiguous(memory_format=form)

    def number(self, values: Tensor, gain: Tensor | None) -> Tensor:
        assert gain is not None
        scaled = (widen(values) * widen(gain)).round().clamp(-self._LARGEST, self._LARGEST)
        return scaled.to(values.device, torch.int32).contiguous()

    def current(self, values: Tensor, gain: Tensor | None) -> Tensor:
        assert gain is not None
        return (values * gain).round().to(torch.int32)

    @staticmethod
    def _round(weight: Tensor, gain: Tensor | None) -> Tensor:
        assert gain is not None
        return (weight * gain.view(-1, *[1] * (weight.dim() - 1))).round().clamp(-127, 127)


def find_profile(name: str, device: torch.device, steps: int = 1) -> Profile:
    """The profile of the given name for a device and runs of up to the given number of steps.

    Raises:
        ValueError: There is no such profile.
    """
    if name not in PROFILES:
        raise ValueError(f"unknown profile {name!r}; choose from {', '.join(PROFILES)}")
    if name == "int8":
        return Integer(steps)
    facts, exact = device_traits(device), name == "exact"
    return Floating(name, torch.float32 if exact else facts.half, facts.counts, exact and facts.same_bits)
