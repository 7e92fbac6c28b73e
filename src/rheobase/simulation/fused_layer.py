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

from rheobase.kernels import conv_integrate_fire, integrate_fire, linear_integrate_fire, sum_pool
from rheobase.network import Constant, IntegrateFire
from rheobase.simulation.autotune import choose
from rheobase.simulation.batch_invariant import memory_format
from rheobase.simulation.profiles import Profile

Synapse = nn.Conv2d | nn.Linear

# Currents at a time, where they go to memory at all: those of the library's kernels, and of our own.
_PIECE, _OWN_PIECE = 1 << 25, 1 << 22

# Neurons up to which whole-number currents may go there: more keep a GPU busy as it is.
_FEW = 1 << 18


@dataclass(frozen=True)
class Beside:
    """A second input of a convolution's layer that goes through single pixels of its own, as a shortcut does.

    Its channels are put beside those of the first input, its weights at the middle of the kernel.

    Attributes:
        shortcut: The convolution of single pixels.
        unit: What one count of the second input stands for.
    """

    shortcut: nn.Conv2d
    unit: float

    @staticmethod
    def fits(synapse: Synapse, shortcut: Synapse) -> bool:
        """Whether two connections can be one."""
        if not isinstance(synapse, nn.Conv2d) or not isinstance(shortcut, nn.Conv2d):
            return False
        rows, columns = synapse.kernel_size
        centred = synapse.padding == ((rows - 1) / 2, (columns - 1) / 2)
        pixels = shortcut.kernel_size == (1, 1) and shortcut.padding == (0, 0)
        return centred and synapse.stride == (1, 1) and pixels

    def join(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Weights and bias of both connections together."""
        rows, columns = weight.shape[2:]
        second = weight.new_zeros(len(weight), self.shortcut.in_channels, rows, columns)
        second[..., rows // 2, columns // 2] = self.shortcut.weight.detach()[..., 0, 0] * self.unit
        biases = [b for b in (bias, self.shortcut.bias) if b is not None]
        return torch.cat([weight, second], 1), sum(biases[1:], biases[0]) if biases else None

    def cat(self, first_TB: Tensor, second: Tensor) -> Tensor:
        """Both inputs as one, channels last in memory."""
        down, right = self.shortcut.stride
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
        *,
        scale: Tensor | None = None,
        beside: Beside | None = None,
    ) -> None:
        """Prepare the layer.

        Args:
            synapse: The connection that the first input goes through.
            neuron: What its result, and whatever is added, drives.
            unit: What one count of the first input stands for.
            profile: The arithmetic.
            scale: Factors on the counts of a second input that is added to the current.
            beside: What the second input is if it goes through a connection of its own.
        """
        super().__init__()
        self.synapse, self.neuron, self.profile, self.beside = synapse, neuron, profile, beside
        weight, bias = synapse.weight.detach() * unit, synapse.bias
        if beside is not None:
            weight, bias = beside.join(weight, bias)
        N = len(weight)
        bias = weight.new_zeros(N) if bias is None else bias.detach()
        others = [bias, neuron.threshold.expand(N), *([] if scale is None else [scale.expand(N)])]
        self.gain = profile.gain(weight, torch.stack(others).abs().amax(0))
        self.weight = profile.weight(weight, self.gain)
        self.bias, self.threshold, *factors = (profile.number(values, self.gain) for values in others)
        self.scale = factors[0] if factors else None
        one = torch.Size((1, N, 1, 1) if isinstance(synapse, nn.Conv2d) else (1, N))
        # Found once where it is the same in every run: for small batches that is most of what a start takes.
        self.first = self._potential(one, 0, 0) if isinstance(neuron.initial, Constant) else None

    def count_scratch(self, shape: tuple[int, ...]) -> int:
        """How many counts it needs for a while, for one sample and step whose spikes have a shape."""
        return 0 if self.beside is None else self.weight.shape[1] * torch.Size(shape[1:]).numel()

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The membrane before the first step, in the units of the layer."""
        potential = self._potential(shape, site, first_sample) if self.first is None else self.first
        form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        # Written to its full size once, whatever it takes to find it.
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
        """Fill the spikes of T steps and move the membrane on.

        Args:
            spikes_TB: (T, B, ...): counts of the unit.
            added: The second input, if there is one: (T, B, ...), or (B, ...) when it is the same throughout;
                counts if it is scaled or has a connection of its own, else a current.
            membrane: (B, N, ...).
            out_TB: (T, B, N, ...).
            totals_TB: (T, B) int32, increased by each sample's spikes at each step.
        """
        if self.beside is not None:
            assert added is not None
            spikes_TB, added = self.beside.cat(spikes_TB, added), None
        elif added is not None and self.scale is None:
            gain = None if self.gain is None else self._broadcast(self.gain, membrane)
            added = self.profile.current(added, gain)
        ways = self._find_ways(membrane)
        trials = {
            name: lambda way=way: way(spikes_TB, added, membrane.clone(), out_TB, None)
            for name, way in ways.items()
        }
        way = ways[choose(self._describe(spikes_TB, added), trials, membrane.device)]
        way(spikes_TB, added, membrane, out_TB, totals_TB)

    def _find_ways(self, membrane: Tensor) -> dict[str, Callable[..., None]]:
        """The ways to fire that the profile leaves open: just one where sums would be rounded otherwise."""
        ways: dict[str, Callable[..., None]] = {"fused": self._advance_fused}
        if not membrane.is_cuda:
            return ways
        if self.profile.splits:
            ways["currents first"] = self._advance_unfused
        elif not membrane.is_floating_point() and membrane.numel() <= _FEW:
            ways["side by side"] = self._advance_side_by_side
        return ways

    def _advance_fused(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None,
    ) -> None:
        self._fire_fused(spikes_TB, added, membrane, out_TB, self.threshold, totals_TB)

    def _fire_fused(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        threshold: Tensor,
        totals_TB: Tensor | None = None,
    ) -> None:
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

    def _advance_unfused(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None,
    ) -> None:
        bias = self.bias.to(self.weight.dtype)
        factor = 1 if self.scale is None else self._broadcast(self.scale, membrane)
        constant = added is not None and added.dim() == membrane.dim()
        piece = max(1, _PIECE // membrane.numel())
        for begin in range(0, len(out_TB), piece):
            steps = slice(begin, begin + piece)
            current_TB = self._weigh(spikes_TB[steps], bias)
            if added is not None:
                more = added if constant else added[steps]
                current_TB += (more * factor).to(current_TB.dtype)
            self._scan(current_TB, membrane, out_TB[steps], None if totals_TB is None else totals_TB[steps])

    def _advance_side_by_side(
        self,
        spikes_TB: Tensor,
        added: Tensor | None,
        membrane: Tensor,
        out_TB: Tensor,
        totals_TB: Tensor | None,
    ) -> None:
        """As fused, bit for bit, but all steps side by side: a few samples alone leave a GPU idle.

        The fused kernel computes the currents, as potentials of neurons that never fire; a scan of doubles,
        which hold them exactly, then does the firing.
        """
        potential = membrane.double()
        never = torch.full_like(self.threshold, torch.iinfo(self.threshold.dtype).max)
        constant = added is not None and added.dim() == membrane.dim()
        piece = max(1, _OWN_PIECE // membrane.numel())
        for begin in range(0, len(out_TB), piece):
            steps = slice(begin, begin + piece)
            out = out_TB[steps]
            more = None
            if added is not None:
                more = _side_by_side(added.expand(len(out), *added.shape) if constant else added[steps])
            current = torch.empty(
                (len(out) * len(membrane), *membrane.shape[1:]),
                dtype=membrane.dtype,
                device=membrane.device,
                memory_format=memory_format(membrane),
            ).zero_()
            self._fire_fused(_side_by_side(spikes_TB[steps]), more, current, _side_by_side(out), never)
            totals = None if totals_TB is None else totals_TB[steps]
            self._scan(current.view(out.shape), potential, out, totals)
        membrane.copy_(potential)

    def _scan(self, current_TB: Tensor, membrane: Tensor, out_TB: Tensor, totals_TB: Tensor | None) -> None:
        """Fill the spikes for currents that went to memory, and move the membrane on."""
        integrate_fire(
            current_TB,
            membrane,
            self._broadcast(self.threshold, membrane).to(membrane.dtype),
            steps=len(current_TB),
            strict=self.neuron.strict,
            reset=self.neuron.reset,
            out=out_TB,
        )
        if totals_TB is not None:
            totals_TB += out_TB.flatten(2).sum(2, dtype=torch.int32)

    def _weigh(self, spikes_TB: Tensor, bias: Tensor) -> Tensor:
        """The currents (T, B, N, ...) in the precision of the weights."""
        rows = spikes_TB.flatten(0, 1).to(self.weight.dtype)
        if isinstance(self.synapse, nn.Linear):
            current = F.linear(rows, self.weight, bias)
        else:
            current = F.conv2d(rows, self.weight, bias, self.synapse.stride, self.synapse.padding)
        return current.view(*spikes_TB.shape[:2], *current.shape[1:])

    def _describe(self, spikes_TB: Tensor, added: Tensor | None) -> str:
        """What decides which way is the faster one; the number of steps only by its order."""
        steps = 1 << (len(spikes_TB) - 1).bit_length()
        kernel = "x".join(map(str, self.weight.shape))
        stride = getattr(self.synapse, "stride", (1,))[0]
        more = "" if added is None else f" + {str(added.dtype)[6:]}"
        shape = "x".join(map(str, (steps, *spikes_TB.shape[1:])))
        return f"{self.profile.name} {kernel} by {stride} on {shape}{more}"

    @staticmethod
    def _broadcast(values: Tensor, membrane: Tensor) -> Tensor:
        return values.view(-1, *[1] * (membrane.dim() - 2))

    def extra_repr(self) -> str:
        return f"profile={self.profile.name}"


def _side_by_side(x_TB: Tensor) -> Tensor:
    """(T, B, ...) as one step of T·B samples, in the same memory where it lies there in that order."""
    return x_TB.flatten(0, 1).contiguous(memory_format=memory_format(x_TB[0]))[None]
