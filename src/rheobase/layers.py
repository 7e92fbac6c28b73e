"""Layers: a weighted connection, what is added to its result and the neurons behind, done together.

The currents between them never go to memory. Spikes, and what average pooling makes of them, are kept as
counts of a *unit* in one or two bytes; the unit goes into the weights that read them.

Shape letters: T steps, B batch, N output channels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rheobase.choices import choose
from rheobase.kernels import conv_integrate_fire, integrate_fire, linear_integrate_fire, sum_pool
from rheobase.neurons import IntegrateFire
from rheobase.profiles import Profile

Synapse = nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class Addend:
    """What happens to a layer's second input before it is added to the current.

    Attributes:
        shortcut: The connection it goes through, if there is one.
        unit: What one count of it stands for on its way through that.
        scale: Factors on its counts otherwise; None where it is a current already.
    """

    shortcut: Synapse | None = None
    unit: float = 1.0
    scale: Tensor | None = None


class SumPool(nn.Module):
    """The sums over the windows of an average pooling."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return sum_pool(x, self.side)


class Layer(nn.Module):
    """A weighted connection and the neurons it drives, in the arithmetic of a profile.

    Attributes:
        neuron: The neuron.
    """

    def __init__(
        self,
        synapse: Synapse,
        neuron: IntegrateFire,
        unit: float,
        profile: Profile,
        addend: Addend | None = None,
    ) -> None:
        """Prepare the layer.

        Args:
            synapse: The connection that the first input goes through.
            neuron: What its result, and whatever is added, drives.
            unit: What one count of the first input stands for.
            profile: The arithmetic.
            addend: What happens to a second input, if there is one.
        """
        super().__init__()
        self.synapse, self.neuron, self.profile = synapse, neuron, profile
        addend = addend or Addend()
        shortcut, scale = addend.shortcut, addend.scale
        weights = [synapse.weight.detach() * unit]
        biases = [synapse.bias]
        if shortcut is not None:
            weights.append(shortcut.weight.detach() * addend.unit)
            biases.append(shortcut.bias)
        N = len(weights[0])
        self.gain = profile.gain(weights)
        self.weight = profile.weight(weights[0], self.gain)
        self.shortcut = shortcut
        self.shortcut_weight = None if shortcut is None else profile.current_weight(weights[1], self.gain)
        bias = sum((b.detach() for b in biases if b is not None), start=weights[0].new_zeros(N))
        self.bias = profile.number(bias, self.gain)
        self.threshold = profile.number(neuron.threshold.expand(N), self.gain)
        self.scale = None if scale is None else profile.number(scale.expand(N), self.gain)

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The membrane before the first step, in the units of the layer."""
        potential = self.neuron.potential(shape, site, first_sample)
        gain = None if self.gain is None else self.gain.view(-1, *[1] * (len(shape) - 2))
        form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        # Written to its full size once, whatever it takes to find it.
        membrane = torch.empty(shape, dtype=self.bias.dtype, device=self.bias.device, memory_format=form)
        return membrane.copy_(self.profile.number(potential, gain))

    def advance(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None = None,
    ) -> None:
        """Fill the spikes of T steps and move the membrane on.

        Args:
            spikes_TB: (T, B, ...): counts of the unit.
            added: The second input, if there is one: (T, B, ...), or (B, ...) when it is the same throughout;
                counts if it goes through the shortcut or is scaled, else a current.
            membrane: (B, N, ...).
            out_TB: (T, B, N, ...).
            totals_TB: (T, B) int32, increased by each sample's spikes at each step.
        """
        extra = self._extra(added, membrane)
        ways = {"fused": self._advance_fused, "currents first": self._advance_unfused}
        if not self.profile.splits or spikes_TB.device.type != "cuda":
            del ways["currents first"]
        key = self._describe(spikes_TB, extra)
        way = choose(key, ways, spikes_TB, extra, membrane, out_TB, totals_TB)
        ways[way](spikes_TB, extra, membrane, out_TB, totals_TB)

    def _advance_fused(
        self,
        spikes_TB: Tensor,
        extra: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None,
    ) -> None:
        options: dict[str, Any] = {
            "residual": extra,
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
        threshold = self._broadcast(self.threshold, membrane)
        run(spikes_TB, self.weight, self.bias, membrane, threshold, **options)

    def _advance_unfused(
        self,
        spikes_TB: Tensor,
        extra: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None,
    ) -> None:
        current_TB = self._current(self.weight, self.synapse, spikes_TB, self.bias)
        if extra is not None:
            factor = 1 if self.scale is None else self._broadcast(self.scale, membrane)
            current_TB = current_TB + (extra * factor).to(current_TB.dtype)
        integrate_fire(
            current_TB,
            membrane,
            self._broadcast(self.threshold, membrane),
            steps=len(out_TB),
            strict=self.neuron.strict,
            reset=self.neuron.reset,
            out=out_TB,
        )
        if totals_TB is not None:
            totals_TB += out_TB.flatten(2).sum(2, dtype=torch.int32)

    def _describe(self, spikes_TB: Tensor, extra: Tensor | None) -> str:
        """What decides which way is the faster one."""
        kernel = "x".join(map(str, self.weight.shape))
        stride = getattr(self.synapse, "stride", (1,))[0]
        added = "" if extra is None else f" + {str(extra.dtype)[6:]}"
        return f"{self.profile.name} {kernel} by {stride} on {'x'.join(map(str, spikes_TB.shape))}{added}"

    def _extra(self, added: Tensor | None, membrane: Tensor) -> Tensor | None:
        """What is added to the current of the connection."""
        if added is None or self.scale is not None:
            return added
        if self.shortcut is not None:
            assert self.shortcut_weight is not None
            return self.profile.current(self._current(self.shortcut_weight, self.shortcut, added, None))
        return self.profile.current(
            added, None if self.gain is None else self._broadcast(self.gain, membrane)
        )

    def _current(self, weight: Tensor, synapse: Synapse, spikes_TB: Tensor, bias: Tensor | None) -> Tensor:
        """The currents (T, B, N, ...) of a connection."""
        T, B = spikes_TB.shape[:2]
        bias = None if bias is None else bias.to(weight.dtype)
        if isinstance(synapse, nn.Conv2d) and max(synapse.kernel_size) > 1:
            rows = spikes_TB.flatten(0, 1).to(weight.dtype)
            current = F.conv2d(rows, weight, bias, synapse.stride, synapse.padding)  # type: ignore[arg-type]
            return current.view(T, B, *current.shape[1:])
        if isinstance(synapse, nn.Linear):
            return self.profile.product(spikes_TB, weight, bias)
        # A convolution that looks at one pixel is a matrix product, for which there are better kernels.
        seen = spikes_TB[..., :: synapse.stride[0], :: synapse.stride[1]].movedim(2, -1)
        return self.profile.product(seen, weight.flatten(1), bias).movedim(-1, 2)

    @staticmethod
    def _broadcast(values: Tensor, membrane: Tensor) -> Tensor:
        return values.view(-1, *[1] * (membrane.dim() - 2))

    def extra_repr(self) -> str:
        return f"profile={self.profile.name}"
