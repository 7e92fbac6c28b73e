"""Fused layers: a connection, what is added to its result, and the neurons behind it, computed together.

The currents between them are not stored. Spikes, and what average pooling makes of them, are kept as counts
of a *unit* in one or two bytes; the unit goes into the weights that read them. Each neuron has its own layer:
`IntegrateFireLayer` and `QuantisedLayer`.

Shape letters: T steps, B batch, N output channels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rheobase.kernels import as_pair, join_channels, max_of_sums, sum_pool
from rheobase.network import MaxPool, Neuron, memory_format
from rheobase.simulation.profiles import Profile

Synapse = nn.Conv2d | nn.Linear
_LARGEST_WINDOW = 16
"""Values of a window whose sums a kernel keeps in registers."""


@dataclass(frozen=True)
class Shortcut:
    """A second input of a convolution that goes through a 1 × 1 convolution of its own.

    Its channels are appended to those of the first input, its weights at the middle of the kernel.

    Attributes:
        conv: The 1 × 1 convolution.
        unit: What one count of the second input stands for.
    """

    conv: nn.Conv2d
    unit: float

    @staticmethod
    def fits(synapse: Synapse, shortcut: Synapse) -> bool:
        """Whether two connections can be computed as one."""
        if not isinstance(synapse, nn.Conv2d) or not isinstance(shortcut, nn.Conv2d):
            return False
        rows, columns = synapse.kernel_size
        centred = synapse.padding == ((rows - 1) / 2, (columns - 1) / 2)
        pixels = shortcut.kernel_size == (1, 1) and shortcut.padding == (0, 0)
        return centred and synapse.stride == (1, 1) and pixels

    def join(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weights and bias of both connections together."""
        rows, columns = weight.shape[2:]
        second = weight.new_zeros(len(weight), self.conv.in_channels, rows, columns)
        second[..., rows // 2, columns // 2] = self.conv.weight.detach()[..., 0, 0] * self.unit
        biases = [b for b in (bias, self.conv.bias) if b is not None]
        return torch.cat([weight, second], 1), sum(biases[1:], biases[0]) if biases else None

    def see(self, second: Tensor) -> Tensor:
        """The pixels of the second input that the 1 × 1 convolution sees."""
        down, right = self.conv.stride
        return second[..., ::down, ::right]


class SumPool(nn.Module):
    """The sums over the windows of an average pooling."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return sum_pool(x, self.side)


class MaxOfSums(MaxPool):
    """Max-pooling of counts by a kernel that sums them up."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__(pool)
        self.windows = as_pair(pool.kernel_size), as_pair(pool.stride), as_pair(pool.padding)

    @staticmethod
    def fits(operation: nn.Module) -> bool:
        """Whether it can replace an operation."""
        pool = operation.pool if type(operation) is MaxPool else None
        if not isinstance(pool, nn.MaxPool2d) or pool.ceil_mode or as_pair(pool.dilation) != (1, 1):
            return False
        rows, columns = as_pair(pool.kernel_size)
        return rows * columns <= _LARGEST_WINDOW

    def advance(self, inputs_TB: tuple[Tensor, ...], state: dict[str, Tensor], steps_before: int) -> Tensor:
        (counts_TB,) = inputs_TB
        if not steps_before:
            state["sum"] = torch.zeros_like(counts_TB[0], dtype=torch.float32)
        return max_of_sums(counts_TB, state["sum"], *self.windows)


class FusedLayer(nn.Module, ABC):
    """A connection and the neurons it drives, in the arithmetic of a profile.

    Attributes:
        neuron: The neuron.
        binary: Whether all counts of its inputs are 0 or 1.
    """

    neuron: Neuron

    def __init__(
        self,
        synapse: Synapse,
        neuron: Neuron,
        unit: float,
        profile: Profile,
        *,
        largest: int,
        scale: Tensor | None = None,
        shortcut: Shortcut | None = None,
        added: int = 127,
        start: float = 0.0,
    ) -> None:
        """Prepare the weights.

        Args:
            synapse: The connection that the first input goes through.
            neuron: The neuron that its result, and what is added to it, drives.
            unit: What one count of the first input stands for.
            profile: The arithmetic.
            largest: The largest count of an input that goes through a connection.
            scale: Factors on the counts of a second input that is added to the current.
            shortcut: The connection of the second input, if it has one.
            added: The largest count of a second input that has no connection.
            start: Part of the threshold to add to the bias.
        """
        super().__init__()
        self.binary = largest == 1 and (shortcut is not None or scale is None or added == 1)
        self.synapse, self.neuron, self.profile, self.shortcut = synapse, neuron, profile, shortcut
        weight, bias = synapse.weight.detach() * unit, synapse.bias
        if shortcut is not None:
            weight, bias = shortcut.join(weight, bias)
        N = len(weight)
        bias = weight.new_zeros(N) if bias is None else bias.detach()
        bias = bias + torch.where(neuron.dead, 0, neuron.threshold * start)
        others = [bias, neuron.threshold.expand(N), *([] if scale is None else [scale.expand(N)])]
        sizes = torch.stack(others).abs()
        # What a sum adds counts up to 127.
        drive = weight.flatten(1).abs().sum(1) * largest + sizes[0] + 127 * sizes[2:].sum(0)
        self.gain = profile.gain(weight, sizes.amax(0), drive)
        self.weight = profile.weight(weight, self.gain)
        self.bias, self.threshold, *factors = (profile.number(values, self.gain) for values in others)
        self.scale = factors[0] if factors else None

    @property
    def resolves(self) -> bool:
        """Whether every threshold is at least two units of its channel, so that rounding keeps its size."""
        alive = self.threshold[~self.neuron.dead.expand(len(self.threshold))]
        return self.threshold.is_floating_point() or bool((alive >= 2).all())

    def count_scratch(self, shape: tuple[int, ...], triton: bool) -> int:
        """Counts that it needs temporarily for one sample and step.

        Args:
            shape: The shape of its spikes.
            triton: Whether Triton kernels compute it.
        """
        return 0 if self.shortcut is None else self.weight.shape[1] * torch.Size(shape[1:]).numel()

    @abstractmethod
    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The membrane before the first step, in the units of the layer."""

    def _combine(self, counts_TB: Tensor, added: Tensor | None, dims: int) -> tuple[Tensor, Tensor | None]:
        """What goes through the weights, and what is added behind them, given both inputs.

        Args:
            counts_TB: (T, B, ...): counts of the unit.
            added: The second input, if there is one: (T, B, ...), or (B, ...) if it is the same at every
                step. Counts if it is scaled or has a connection of its own, else a current.
            dims: The number of dimensions of the membrane.
        """
        if self.shortcut is not None:
            assert added is not None
            return join_channels(counts_TB, self.shortcut.see(added)), None
        if added is not None and self.scale is None:
            gain = None if self.gain is None else self._broadcast(self.gain, dims)
            return counts_TB, self.profile.current(added, gain)
        return counts_TB, added

    @staticmethod
    def _broadcast(values: Tensor, dims: int) -> Tensor:
        return values.view(-1, *[1] * (dims - 2))

    def extra_repr(self) -> str:
        return f"profile={self.profile.name}"


def as_one_step(x_TB: Tensor) -> Tensor:
    """(T, B, ...) as one step of T·B samples, in the same memory if it is laid out in that order."""
    return x_TB.flatten(0, 1).contiguous(memory_format=memory_format(x_TB[0]))[None]
