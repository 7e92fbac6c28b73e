"""Fusion: the calls of a schedule that one kernel does together, and the signals kept as small whole numbers.

A weighted connection, what is added to its result and the neuron behind become one `Layer`: the currents
between them never go to memory. Spikes, and what average pooling makes of them, are kept as counts of a
*unit* in one or two bytes; the unit goes into the weights that read them.

Shape letters: T steps, B batch, N output channels.
"""

from collections.abc import Collection
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from rheobase.choices import choose
from rheobase.kernels import conv_integrate_fire, integrate_fire, linear_integrate_fire, sum_pool
from rheobase.neurons import IntegrateFire
from rheobase.operations import Add, Concat, MaxPool, Pad, Permute, Reshape, Scale, Slice
from rheobase.profiles import Profile
from rheobase.schedule import Schedule, Step, build

_ROUTING = (Reshape, Permute, Slice, Concat, Pad)
_LARGEST_COUNT = 127


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
        synapse: nn.Conv2d | nn.Linear,
        neuron: IntegrateFire,
        unit: float,
        profile: Profile,
        *,
        shortcut: nn.Conv2d | nn.Linear | None = None,
        shortcut_unit: float = 1.0,
        scale: Tensor | None = None,
    ) -> None:
        """Prepare the layer.

        Args:
            synapse: The connection that the first input goes through.
            neuron: What its result, and whatever is added, drives.
            unit: What one count of the first input stands for.
            profile: The arithmetic.
            shortcut: The connection that a second input goes through before it is added.
            shortcut_unit: What one count of the second input stands for.
            scale: Factors on a second input that goes through no connection.
        """
        super().__init__()
        self.synapse, self.neuron, self.profile = synapse, neuron, profile
        weights = [synapse.weight.detach() * unit]
        biases = [synapse.bias]
        if shortcut is not None:
            weights.append(shortcut.weight.detach() * shortcut_unit)
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
        arguments = (spikes_TB, self.weight, self.bias, membrane)
        options = {
            "residual": extra,
            "residual_scale": self.scale,
            "strict": self.neuron.strict,
            "reset": self.neuron.reset,
            "out": out_TB,
            "totals": totals_TB,
        }
        if isinstance(self.synapse, nn.Linear):
            linear_integrate_fire(*arguments, self.threshold, **options)
            return
        conv_integrate_fire(
            *arguments,
            self.threshold[:, None, None],
            stride=self.synapse.stride,
            padding=self.synapse.padding,
            **options,
        )

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

    def _current(
        self, weight: Tensor, synapse: nn.Conv2d | nn.Linear, spikes_TB: Tensor, bias: Tensor | None
    ) -> Tensor:
        """The currents (T, B, N, ...) of a connection."""
        T, B = spikes_TB.shape[:2]
        bias = None if bias is None else bias.to(weight.dtype)
        if isinstance(synapse, nn.Conv2d) and max(synapse.kernel_size) > 1:
            rows = spikes_TB.flatten(0, 1).to(weight.dtype)
            current = F.conv2d(rows, weight, bias, synapse.stride, synapse.padding)
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


def fuse(plan: Schedule, profile: Profile, visible: Collection[str] = ()) -> Schedule:
    """Put calls of a schedule together where one kernel can do them.

    Args:
        plan: The schedule.
        profile: The arithmetic of the layers.
        visible: Names of nodes whose signal somebody wants to see.
    """
    return _Fusion(plan, profile, set(visible)).run()


class _Fusion:
    def __init__(self, plan: Schedule, profile: Profile, visible: set[str]) -> None:
        self.plan, self.profile, self.visible = plan, profile, visible
        self.steps = {step.node: step for step in plan.steps}
        self.units: dict[fx.Node, float] = {}
        self.largest: dict[fx.Node, int] = {}
        self.readers = {
            node: [s.node for s in plan.steps if node in s.inputs] for node in [plan.source, *self.steps]
        }

    def run(self) -> Schedule:
        steps: dict[fx.Node, Step] = {}
        for step in self.plan.steps:
            steps[step.node] = self._layer(step) or self._count(step) or step
        needed, waiting = set(), [self.plan.result]
        waiting += [node for node in steps if str(node.target) in self.visible]
        while waiting:
            node = waiting.pop()
            if node in steps and node not in needed:
                needed.add(node)
                waiting += steps[node].inputs
        kept = tuple(step for node, step in steps.items() if node in needed)
        return build(replace(self.plan, steps=kept), self.profile.counts.itemsize)

    def _count(self, step: Step) -> Step | None:
        """The step, if its signal can be kept as counts of a unit."""
        if step.still or step.tail:
            return None
        operation, inputs = step.operation, step.inputs
        if isinstance(operation, IntegrateFire):
            return self._counted(step, 1.0, 1) if step.binary else None
        if any(i not in self.units for i in inputs) or len({self.units[i] for i in inputs}) != 1:
            return None
        unit, largest = self.units[inputs[0]], max(self.largest[i] for i in inputs)
        if isinstance(operation, _ROUTING) or (isinstance(operation, MaxPool) and largest == 1):
            return self._counted(step, unit, largest)
        side = _square_side(operation)
        if side is not None and largest * side**2 <= _LARGEST_COUNT:
            pooled = replace(step, operation=SumPool(side))
            return self._counted(pooled, unit / side**2, largest * side**2)
        return None

    def _counted(self, step: Step, unit: float, largest: int) -> Step:
        self.units[step.node], self.largest[step.node] = unit, largest
        return replace(step, unit=unit)

    def _layer(self, step: Step) -> Step | None:
        """The layer that ends in this neuron, if there is one."""
        neuron, source = step.operation, step.inputs[0]
        if not isinstance(neuron, IntegrateFire) or not step.binary or neuron.threshold.dim() > 1:
            return None
        found = self._arrange(source)
        if found is None:
            return None
        synapse, inputs, second = found
        layer = Layer(synapse, neuron, self.units[inputs[0]], self.profile, **second)
        return self._counted(replace(step, operation=layer, inputs=inputs), 1.0, 1)

    def _arrange(
        self, source: fx.Node
    ) -> tuple[nn.Conv2d | nn.Linear, tuple[fx.Node, ...], dict[str, object]] | None:
        """A connection, the one or two inputs of its layer, and what happens to the second."""
        if synapse := self._synapse(source):
            return synapse, self.steps[source].inputs, {}
        if source not in self.steps or not isinstance(self.steps[source].operation, Add):
            return None
        terms = self.steps[source].inputs
        if len(terms) != 2 or not self._hidden(source):
            return None
        connections = [(term, found) for term in terms if (found := self._synapse(term))]
        if not connections:
            return None
        main, synapse = max(connections, key=lambda pair: pair[1].weight.numel())
        first = self.steps[main].inputs[0]
        other = terms[1] if terms[0] is main else terms[0]
        if len(connections) == 2:
            second = self.steps[other].inputs[0]
            shortcut = next(found for term, found in connections if term is other)
            return synapse, (first, second), {"shortcut": shortcut, "shortcut_unit": self.units[second]}
        step = self.steps.get(other)
        if step and isinstance(step.operation, Scale) and not step.operation.shifted:
            second = step.inputs[0]
            if second in self.units and step.operation.scale.dim() <= 1:
                return synapse, (first, second), {"scale": step.operation.scale * self.units[second]}
        if other in self.units:
            unit = torch.full_like(synapse.weight.detach()[:1].flatten()[:1], self.units[other])
            return synapse, (first, other), {"scale": unit}
        return synapse, (first, other), {}

    def _hidden(self, node: fx.Node) -> bool:
        """Whether only one call reads a node, and nobody looks at it."""
        return (
            len(self.readers[node]) == 1
            and str(node.target) not in self.visible
            and node is not self.plan.result
        )

    def _synapse(self, node: fx.Node) -> nn.Conv2d | nn.Linear | None:
        """The connection at a node, if a kernel can do it together with what reads it."""
        step = self.steps.get(node)
        if step is None or step.still or not self._hidden(node) or step.inputs[0] not in self.units:
            return None
        operation = step.operation
        if isinstance(operation, nn.Linear):
            return operation if len(step.shape) == 1 else None
        if not isinstance(operation, nn.Conv2d) or operation.groups != 1 or operation.dilation != (1, 1):
            return None
        plain = operation.padding_mode == "zeros" and not isinstance(operation.padding, str)
        pixel = max(operation.kernel_size) == 1 and max(_pair(operation.padding)) > 0
        return operation if plain and not pixel else None


def _square_side(operation: nn.Module) -> int | None:
    """The side of the windows of an average pooling that puts each input into one window of one size."""
    if not isinstance(operation, nn.AvgPool2d) or operation.ceil_mode or operation.divisor_override:
        return None
    sides = {*_pair(operation.kernel_size), *_pair(operation.stride)}
    return sides.pop() if len(sides) == 1 and set(_pair(operation.padding)) == {0} else None


def _pair(extent: int | tuple[int, int]) -> tuple[int, int]:
    return (extent, extent) if isinstance(extent, int) else extent
