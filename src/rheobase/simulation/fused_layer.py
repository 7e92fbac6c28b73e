"""Fused layers: a connection, what is added to its result, and the neurons behind it, computed together.

The currents between them are not stored. Spikes, and what average pooling makes of them, are kept as counts
of a *unit* in one or two bytes; the unit goes into the weights that read them.

On a GPU a layer with few neurons would leave the device idle if it were computed step by step. There the
currents of many steps are computed first, and a scan over time lets the neurons fire. `FusedLayer` says when.

Shape letters: T steps, B batch, N output channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.kernels import (
    conv_integrate_fire,
    integrate_fire,
    linear_integrate_fire,
    report_routine,
    sum_pool,
)
from rheobase.network import Constant, IntegrateFire
from rheobase.simulation.batch_invariant import memory_format
from rheobase.simulation.device import device_traits
from rheobase.simulation.profiles import Profile

Synapse = nn.Conv2d | nn.Linear

# Currents stored at a time, if they are stored: those of PyTorch's kernels, and of our own.
_PIECE, _OWN_PIECE = 1 << 25, 1 << 22


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

    def cat(self, first_TB: Tensor, second: Tensor) -> Tensor:
        """Both inputs as one, channels-last in memory."""
        down, right = self.conv.stride
        seen = second[..., ::down, ::right].movedim(-3, -1)
        first = first_TB.movedim(2, -1)
        return torch.cat([first, seen.expand(*first.shape[:-1], -1)], -1).movedim(-1, 2)


class SumPool(nn.Module):
    """The sums over the windows of an average pooling."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return sum_pool(x, self.side)


class FusedLayer(nn.Module):
    """A connection and the neurons it drives, in the arithmetic of a profile.

    It is computed by a fused kernel, except on a GPU in two cases, where currents are computed first:

    - The layer has at most `few_neurons` neurons in the batch (see `DeviceTraits`), in `int8` and `fast`.
    - The connection is a linear layer in `fast`: PyTorch's matrix product is faster.

    In `int8` both ways give the same bits. In `fast` currents computed first are rounded to half precision.
    `exact` always uses the fused kernel.

    Attributes:
        neuron: The neuron.
    """

    def __init__(
        self,
        synapse: Synapse,
        neuron: IntegrateFire,
        unit: float,
        profile: Profile,
        *,
        scale: Tensor | None = None,
        shortcut: Shortcut | None = None,
    ) -> None:
        """Prepare the weights.

        Args:
            synapse: The connection that the first input goes through.
            neuron: The neuron that its result, and what is added to it, drives.
            unit: What one count of the first input stands for.
            profile: The arithmetic.
            scale: Factors on the counts of a second input that is added to the current.
            shortcut: The connection of the second input, if it has one.
        """
        super().__init__()
        self.synapse, self.neuron, self.profile, self.shortcut = synapse, neuron, profile, shortcut
        weight, bias = synapse.weight.detach() * unit, synapse.bias
        if shortcut is not None:
            weight, bias = shortcut.join(weight, bias)
        N = len(weight)
        bias = weight.new_zeros(N) if bias is None else bias.detach()
        others = [bias, neuron.threshold.expand(N), *([] if scale is None else [scale.expand(N)])]
        sizes = torch.stack(others).abs()
        # A signal counts up to one over its unit, and what a sum adds counts up to 127.
        least = unit if shortcut is None else min(unit, shortcut.unit)
        drive = weight.flatten(1).abs().sum(1) / least + sizes[0] + 127 * sizes[2:].sum(0)
        self.gain = profile.gain(weight, sizes.amax(0), drive)
        self.weight = profile.weight(weight, self.gain)
        self.bias, self.threshold, *factors = (profile.number(values, self.gain) for values in others)
        self.scale = factors[0] if factors else None
        one = torch.Size((1, N, 1, 1) if isinstance(synapse, nn.Conv2d) else (1, N))
        # Computed once if it is the same in every run: for small batches that is most of the work of a start.
        self.first = self._potential(one, 0, 0) if isinstance(neuron.initial, Constant) else None

    @property
    def resolves(self) -> bool:
        """Whether every threshold is at least two units of its channel, so that rounding keeps its size."""
        alive = self.threshold[~self.neuron.dead.expand(len(self.threshold))]
        return self.threshold.is_floating_point() or bool((alive >= 2).all())

    def count_scratch(self, shape: tuple[int, ...]) -> int:
        """Counts that it needs temporarily for one sample and step whose spikes have a shape."""
        return 0 if self.shortcut is None else self.weight.shape[1] * torch.Size(shape[1:]).numel()

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The membrane before the first step, in the units of the layer."""
        potential = self._potential(shape, site, first_sample) if self.first is None else self.first
        form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        membrane = torch.empty(shape, dtype=self.bias.dtype, device=self.bias.device, memory_format=form)
        return membrane.copy_(potential)

    def _potential(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        potential = self.neuron.potential(shape, site, first_sample)
        gain = None if self.gain is None else self.gain.view(-1, *[1] * (len(shape) - 2))
        return self.profile.number(potential, gain)

    def advance(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None = None,
    ) -> None:
        """Write the spikes of T steps and update the membrane.

        Args:
            spikes_TB: (T, B, ...): counts of the unit.
            added: The second input, if there is one: (T, B, ...), or (B, ...) if it is the same at every
                step. Counts if it is scaled or has a connection of its own, else a current.
            membrane: (B, N, ...).
            out_TB: (T, B, N, ...).
            totals_TB: (T, B) int32, increased by the number of spikes of each sample at each step.
        """
        if self.shortcut is not None:
            assert added is not None
            spikes_TB, added = self.shortcut.cat(spikes_TB, added), None
        elif added is not None and self.scale is None:
            gain = None if self.gain is None else self._broadcast(self.gain, membrane)
            added = self.profile.current(added, gain)
        if self.currents_first(membrane):
            self._advance_currents_first(spikes_TB, added, membrane, out_TB, totals_TB)
        else:
            self._fire(spikes_TB, added, membrane, out_TB, self.threshold, totals_TB)

    def currents_first(self, membrane: Tensor) -> bool:
        """Whether currents are computed before the neurons fire, for a membrane (B, N, ...)."""
        few = device_traits(membrane.device).few_neurons
        if few == 0 or not (self.profile.splits or self._integer):
            return False
        return membrane.numel() <= few or (self.profile.splits and isinstance(self.synapse, nn.Linear))

    def _fire(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        threshold: Tensor,
        totals_TB: Tensor | None = None,
    ) -> None:
        """Run the fused kernel."""
        options: dict[str, Any] = {
            "residual": added,
            "residual_scale": self.scale,
            "strict": self.neuron.strict,
            "reset": self.neuron.reset,
            "out": out_TB,
            "totals": totals_TB,
        }
        run: Callable[..., Tensor] = linear_integrate_fire
        if isinstance(self.synapse, nn.Conv2d):
            run = conv_integrate_fire
            options |= {"stride": self.synapse.stride, "padding": self.synapse.padding}
        run(spikes_TB, self.weight, self.bias, membrane, self._broadcast(threshold, membrane), **options)

    def _advance_currents_first(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None,
    ) -> None:
        """Compute the currents of several steps together, then scan over them."""
        # Double precision holds integer potentials exactly.
        potential = membrane.double() if self._integer else membrane
        compute = self._integer_currents if self._integer else self._float_currents
        constant = added is not None and added.dim() == membrane.dim()
        piece = max(1, (_OWN_PIECE if self._integer else _PIECE) // membrane.numel())
        for begin in range(0, len(out_TB), piece):
            steps = slice(begin, begin + piece)
            more = added if added is None or constant else added[steps]
            current_TB = compute(spikes_TB[steps], more, membrane, out_TB[steps])
            integrate_fire(
                current_TB,
                potential,
                self._broadcast(self.threshold, membrane).to(potential.dtype),
                steps=len(current_TB),
                strict=self.neuron.strict,
                reset=self.neuron.reset,
                out=out_TB[steps],
            )
        if self._integer:
            membrane.copy_(potential)
        if totals_TB is not None:
            totals_TB += out_TB.flatten(2).sum(2, dtype=torch.int32)

    def _float_currents(
        self, spikes_TB: Tensor, added: Tensor | None, membrane: Tensor, scratch_TB: Tensor
    ) -> Tensor:
        """The currents (T, B, N, ...) in the precision of the weights, by PyTorch."""
        rows, bias = spikes_TB.flatten(0, 1).to(self.weight.dtype), self.bias.to(self.weight.dtype)
        if isinstance(self.synapse, nn.Linear):
            report_routine("torch linear")
            current = F.linear(rows, self.weight, bias)
        else:
            report_routine("torch conv2d")
            current = F.conv2d(rows, self.weight, bias, self.synapse.stride, self.synapse.padding)
        current_TB = current.view(*spikes_TB.shape[:2], *current.shape[1:])
        if added is not None:
            factor = 1 if self.scale is None else self._broadcast(self.scale, membrane)
            current_TB += (added * factor).to(current_TB.dtype)
        return current_TB

    def _integer_currents(
        self, spikes_TB: Tensor, added: Tensor | None, membrane: Tensor, scratch_TB: Tensor
    ) -> Tensor:
        """The currents (T, B, N, ...) by the fused kernel: as potentials of neurons that never fire.

        All steps are passed as samples of one step. Their spikes, all zero, go to `scratch_TB`.
        """
        never = torch.full_like(self.threshold, torch.iinfo(self.threshold.dtype).max)
        if added is not None:
            constant = added.dim() == membrane.dim()
            added = _as_one_step(added.expand(len(scratch_TB), *added.shape) if constant else added)
        shape, form = (len(scratch_TB) * len(membrane), *membrane.shape[1:]), memory_format(membrane)
        current = torch.empty(shape, dtype=membrane.dtype, device=membrane.device, memory_format=form).zero_()
        self._fire(_as_one_step(spikes_TB), added, current, _as_one_step(scratch_TB), never)
        return current.view(scratch_TB.shape)

    @property
    def _integer(self) -> bool:
        return not self.bias.is_floating_point()

    @staticmethod
    def _broadcast(values: Tensor, membrane: Tensor) -> Tensor:
        return values.view(-1, *[1] * (membrane.dim() - 2))

    def extra_repr(self) -> str:
        return f"profile={self.profile.name}"


def _as_one_step(x_TB: Tensor) -> Tensor:
    """(T, B, ...) as one step of T·B samples, in the same memory if it is laid out in that order."""
    return x_TB.flatten(0, 1).contiguous(memory_format=memory_format(x_TB[0]))[None]
