"""Fusion: which calls of a plan are computed together, and which signals are kept as counts."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn

from rheobase.kernels import as_pair, choose_backend
from rheobase.network import (
    SYNAPTIC,
    Add,
    IntegrateFire,
    MatMul,
    MaxPool,
    Neuron,
    Permute,
    Reshape,
    Scale,
    SigmaDelta,
    along_channels,
    is_direct,
    traits_of,
)
from rheobase.simulation.count_products import (
    AddedProduct,
    CountMatMul,
    CountProduct,
    HalfLinear,
    IntegerLinear,
)
from rheobase.simulation.encoded_product import EncodedProduct
from rheobase.simulation.fused_layer import FusedLayer, MaxOfSums, Shortcut, SumPool, Synapse
from rheobase.simulation.integrate_fire_layer import IntegrateFireLayer
from rheobase.simulation.plan import Plan, Step
from rheobase.simulation.profiles import Integer, Profile
from rheobase.simulation.quantised_layer import QuantisedLayer

_LARGEST_COUNT = 127


def fuse(plan: Plan, profile: Profile, visible: Collection[str] = ()) -> Plan:
    """Combine the calls of a plan that one kernel can compute.

    Args:
        plan: The plan.
        profile: The arithmetic of the layers.
        visible: Names of nodes whose signal is needed at every step.
    """
    return _Fusion(plan, profile, set(visible)).run()


def name_unfused(plan: Plan) -> list[str]:
    """The connections that spikes pass at every step and that are not part of a fused layer."""
    return [s.name for s in plan.steps if isinstance(s.operation, SYNAPTIC) and not (s.still or s.tail)]


class _Fusion:
    def __init__(self, plan: Plan, profile: Profile, visible: set[str]) -> None:
        self.plan, self.profile, self.visible = plan, profile, visible
        self.steps = {step.node: step for step in plan.steps}
        neurons = [step.operation for step in plan.steps if isinstance(step.operation, Neuron)]
        self.sums_up = any(isinstance(neuron, SigmaDelta) for neuron in neurons)
        devices = {neuron.threshold.device for neuron in neurons}
        self.triton = {choose_backend(d, offered=("reference", "triton")) for d in devices} == {"triton"}
        self.units: dict[fx.Node, float] = {}
        self.largest: dict[fx.Node, int] = {}
        self.signed: set[fx.Node] = set()
        self.readers = {
            node: [s.node for s in plan.steps if node in s.inputs] for node in [plan.source, *self.steps]
        }

    def run(self) -> Plan:
        steps: dict[fx.Node, Step] = {}
        for step in self.plan.steps:
            found = self._layer(step) or self._count(step) or self._product(step) or step
            fused = self._encoded(found, steps) or self._scaled(found, steps) or self._added(found, steps)
            steps[step.node] = fused or found
        steps = {node: self._operand(step, steps) or step for node, step in steps.items()}
        needed, waiting = set(), [self.plan.result]
        waiting += [node for node, step in steps.items() if step.name in self.visible]
        while waiting:
            node = waiting.pop()
            if node in steps and node not in needed:
                needed.add(node)
                waiting += steps[node].inputs
        kept = tuple(step for node, step in steps.items() if node in needed)
        return replace(self.plan, steps=kept, count_size=self.profile.counts.itemsize)

    def _count(self, step: Step) -> Step | None:
        """The step, if its signal can be kept as counts of a unit."""
        if step.still or step.tail:
            return None
        operation, inputs = step.operation, step.inputs
        if step.fires:
            largest = _largest_count(step)
            return self._count_signed(step) if largest is None else self._counted(step, 1.0, largest)
        if any(i not in self.units for i in inputs) or len({self.units[i] for i in inputs}) != 1:
            return None
        unit, largest = self.units[inputs[0]], max(self.largest[i] for i in inputs)
        traits = traits_of(operation)
        if self.signed & {*inputs}:
            alike = traits.routes and self.signed >= {*inputs}
            return self._counted(step, unit, largest, signed=True) if alike else None
        # In the sum code a maximum is one of the counts it is taken over.
        maximum = isinstance(operation, MaxPool) and self.sums_up
        if traits.routes or maximum:
            return self._counted(step, unit, largest)
        if traits.spikes == "restart" and largest == 1:
            if self.triton and MaxOfSums.fits(operation):
                step = replace(step, operation=MaxOfSums(operation.pool))  # type: ignore[arg-type]
            return self._counted(step, unit, largest)
        side = None if self.profile.same_bits else _square_side(operation)
        if side is not None and largest * side**2 <= _LARGEST_COUNT:
            pooled = replace(step, operation=SumPool(side))
            return self._counted(pooled, unit / side**2, largest * side**2)
        return None

    def _counted(self, step: Step, unit: float, largest: int, signed: bool = False) -> Step:
        self.units[step.node], self.largest[step.node] = unit, largest
        if signed:
            self.signed.add(step.node)
        return replace(step, unit=unit, kept=self._signed_kind if signed else None)

    @property
    def _signed_kind(self) -> torch.dtype:
        counts = self.profile.counts
        return counts if counts.is_floating_point else torch.int8

    def _count_signed(self, step: Step) -> Step | None:
        """The step of a signed neuron, if products of counts read it."""
        neuron = step.operation
        if not self._multiplies or not isinstance(neuron, SigmaDelta):
            return None
        small = neuron.levels <= _LARGEST_COUNT and bool((neuron.amplitude == 1).all())
        if not small or not self._feeds_products(step.node):
            return None
        return self._counted(step, 1.0, neuron.levels, signed=True)

    @property
    def _multiplies(self) -> bool:
        """Whether counts are multiplied as they are; in `exact` they become values first."""
        return isinstance(self.profile, Integer) or self.profile.splits

    def _feeds_products(self, node: fx.Node) -> bool:
        """Whether a linear layer or a product of two signals reads a node, moved or not."""
        for reader in (self.steps[reader] for reader in self.readers[node]):
            if isinstance(reader.operation, (nn.Linear, MatMul)) and not reader.tail:
                return True
            if traits_of(reader.operation).routes and self._feeds_products(reader.node):
                return True
        return False

    def _product(self, step: Step) -> Step | None:
        """The step, if it is a product of counts."""
        inputs = step.inputs
        if not self._multiplies or not self.sums_up or step.still or step.tail:
            return None
        if any(i not in self.units for i in inputs):
            return None
        if isinstance(step.operation, nn.Linear):
            kind = IntegerLinear if isinstance(self.profile, Integer) else HalfLinear
            return replace(step, operation=kind(step.operation, self.units[inputs[0]]))
        if not isinstance(step.operation, MatMul) or len(inputs) != 2:
            return None
        a, b = inputs
        if not CountMatMul.fits((self.largest[a], self.largest[b]), self.steps[b].shape[-2]):
            return None
        unit, scale = self.units[a] * self.units[b], None
        if unit != 1:
            neurons = (s.operation for s in self.plan.steps if isinstance(s.operation, SigmaDelta))
            scale = next(neurons).threshold.new_tensor(unit, dtype=self.plan.dtype)
        return replace(step, operation=CountMatMul(self.plan.dtype, scale))

    def _scaled(self, step: Step, steps: dict[fx.Node, Step]) -> Step | None:
        """The step of a scale that a product of two signals feeds, as a product with that scale."""
        scale, source = step.operation, steps.get(step.inputs[0])
        if not isinstance(scale, Scale) or scale.shifted or step.still or step.tail or source is None:
            return None
        if not isinstance(source.operation, CountMatMul) or not self._hidden(source.node):
            return None
        if source.operation.scale is not None:
            return None
        product = CountMatMul(self.plan.dtype, along_channels(scale.scale, len(step.shape) + 1))
        return replace(step, operation=product, inputs=source.inputs)

    def _added(self, step: Step, steps: dict[fx.Node, Step]) -> Step | None:
        """The step of a sum of a linear layer of counts and another signal, if a kernel computes both."""
        terms = [steps[i] for i in step.inputs if i in steps]
        alike = [term.shape for term in terms] == [step.shape] * 2
        if not isinstance(step.operation, Add) or step.tail or not alike or any(t.still for t in terms):
            return None
        for term, other in (terms, terms[::-1]):
            layer = term.operation
            if not isinstance(layer, (IntegerLinear, HalfLinear)) or not self._hidden(term.node):
                continue
            scaled = layer.scale is not None and layer.scale.dtype == self.plan.dtype
            if self.triton and scaled and other.node not in self.units:
                return replace(step, operation=AddedProduct(layer), inputs=(*term.inputs, other.node))
        return None

    def _encoded(self, step: Step, steps: dict[fx.Node, Step]) -> Step | None:
        """The step of a neuron that a product of counts drives, if a kernel computes both."""
        neuron, moves, node = step.operation, list[nn.Module](), step.inputs[0]
        if not isinstance(neuron, SigmaDelta) or step.unit is None or not EncodedProduct.supports(neuron):
            return None
        while node in steps and self._hidden(node):
            source = steps[node]
            if isinstance(source.operation, CountProduct):
                fused = EncodedProduct(source.operation, moves, neuron, source.shape)
                scratch = torch.Size(step.shape).numel() * torch.int32.itemsize
                return replace(step, operation=fused, inputs=source.inputs, scratch=scratch)
            if not isinstance(source.operation, (Reshape, Permute)):
                break
            moves.insert(0, source.operation)
            node = source.inputs[0]
        return None

    def _operand(self, step: Step, steps: dict[fx.Node, Step]) -> Step | None:
        """The step of a neuron whose counts only products of two signals read: kept as these take them."""
        neuron = self.steps[step.node].operation
        readers = [steps[reader].operation for reader in self.readers[step.node]]
        if not isinstance(neuron, SigmaDelta) or step.unit is None or not readers:
            return None
        alike = all(isinstance(reader, CountMatMul) for reader in readers)
        return replace(step, kept=CountMatMul.operand(neuron.threshold.device)) if alike else None

    def _layer(self, step: Step) -> Step | None:
        """The fused layer that ends in this neuron, if there is one."""
        neuron, source, largest = step.operation, step.inputs[0], _largest_count(step)
        if largest is None or not _has_layer(neuron):
            return None
        if self.profile.same_bits and isinstance(neuron, SigmaDelta):
            return None
        if synapse := self._synapse(source):
            inputs: tuple[fx.Node, ...] = self.steps[source].inputs
            layer = self._fuse(synapse, neuron, inputs[0])
        elif found := self._sum(source, neuron):
            layer, inputs = found
        else:
            return None
        if not layer.resolves:
            return None
        scratch = layer.count_scratch(step.shape, self.triton)
        fused = replace(step, operation=layer, inputs=inputs, scratch=scratch)
        return self._counted(fused, 1.0, largest)

    def _fuse(self, synapse: Synapse, neuron: nn.Module, first: fx.Node, **options: Any) -> FusedLayer:
        """The fused layer of a connection that reads a node, and a neuron."""
        kind: type[Any] = QuantisedLayer if isinstance(neuron, SigmaDelta) else IntegrateFireLayer
        options = {"largest": self.largest[first]} | options
        layer: FusedLayer = kind(synapse, neuron, self.units[first], self.profile, **options)
        return layer

    def _sum(self, source: fx.Node, neuron: nn.Module) -> tuple[FusedLayer, tuple[fx.Node, fx.Node]] | None:
        """The fused layer behind a sum of two signals, and its inputs."""
        step = self.steps.get(source)
        if step is None or not isinstance(step.operation, Add) or not self._hidden(source):
            return None
        terms = [self.steps[i] for i in step.inputs if i in self.steps]
        if [term.shape for term in terms] != [step.shape, step.shape]:
            return None
        connections = {term.node: found for term in terms if (found := self._synapse(term.node))}
        if not connections:
            return None
        largest_first = sorted(connections, key=lambda node: -connections[node].weight.numel())
        pairs = [(a, b) for a in largest_first for b in largest_first if a is not b]
        fitting = (a for a, b in pairs if self._joins(connections[a], connections[b]))
        main = next(fitting, largest_first[0])
        other = terms[1] if terms[0].node is main else terms[0]
        synapse, first = connections[main], self.steps[main].inputs[0]
        shortcut = connections.get(other.node)
        if shortcut is not None and self._joins(synapse, shortcut):
            second = other.inputs[0]
            joined = Shortcut(shortcut, self.units[second])  # type: ignore[arg-type]
            largest = max(self.largest[first], self.largest[second])
            return self._fuse(synapse, neuron, first, shortcut=joined, largest=largest), (first, second)
        if isinstance(other.operation, Scale) and not other.operation.shifted:
            second, scale = other.inputs[0], other.operation.scale
            if self._adds(second) and scale.dim() <= 1:
                scale, added = scale * self.units[second], self.largest[second]
                return self._fuse(synapse, neuron, first, scale=scale, added=added), (first, second)
        if self._adds(other.node):
            scale = synapse.weight.new_tensor(self.units[other.node])
            added = self.largest[other.node]
            return self._fuse(synapse, neuron, first, scale=scale, added=added), (first, other.node)
        return self._fuse(synapse, neuron, first), (first, other.node)

    def _joins(self, synapse: Synapse, shortcut: Synapse) -> bool:
        """Whether two connections are computed as one, in which sums have another order."""
        return not self.profile.same_bits and Shortcut.fits(synapse, shortcut)

    def _adds(self, node: fx.Node) -> bool:
        """Whether the counts of a node can be scaled and added."""
        return node in self.units and (self.largest[node] == 1 or not self.profile.same_bits)

    def _hidden(self, node: fx.Node) -> bool:
        """Whether a single call reads a node and nothing else needs its signal."""
        return (
            len(self.readers[node]) == 1
            and str(node.target) not in self.visible
            and node is not self.plan.result
        )

    def _synapse(self, node: fx.Node) -> Synapse | None:
        """The connection at a node, if a kernel can compute it together with what reads it."""
        step = self.steps.get(node)
        if step is None or step.still or not self._hidden(node) or step.inputs[0] not in self.units:
            return None
        if step.inputs[0] in self.signed:
            return None  # kernels take counts from 0 on
        operation = step.operation
        if isinstance(operation, nn.Linear):
            return operation if len(step.shape) == 1 and not self.profile.same_bits else None
        if not isinstance(operation, nn.Conv2d) or operation.groups != 1 or operation.dilation != (1, 1):
            return None
        plain = operation.padding_mode == "zeros" and not isinstance(operation.padding, str)
        if self.profile.same_bits:
            plain = is_direct(operation, self.plan.dtype) and self.largest[step.inputs[0]] == 1
        return operation if plain else None


def _largest_count(step: Step) -> int | None:
    """The largest count that a neuron sends, if its signal can be kept as counts of 1."""
    neuron = step.operation
    if isinstance(neuron, SigmaDelta):
        kept = not neuron.signed and neuron.levels <= _LARGEST_COUNT and bool((neuron.amplitude == 1).all())
        return neuron.levels if kept else None
    return 1 if isinstance(neuron, IntegrateFire) and step.binary else None


def _has_layer(neuron: nn.Module) -> bool:
    if isinstance(neuron, SigmaDelta):
        return QuantisedLayer.supports(neuron)
    return isinstance(neuron, IntegrateFire) and neuron.threshold.dim() <= 1


def _square_side(operation: nn.Module) -> int | None:
    """The side of the windows of an average pooling with square windows that do not overlap, or None."""
    if not isinstance(operation, nn.AvgPool2d) or operation.ceil_mode or operation.divisor_override:
        return None
    sides = {*as_pair(operation.kernel_size), *as_pair(operation.stride)}
    return sides.pop() if len(sides) == 1 and set(as_pair(operation.padding)) == {0} else None
