"""Synapses: how many operations one spike causes.

A spike costs one addition at every synapse it reaches. The fan-out of each neuron is counted exactly, by
connections whose weights are all one, so that borders, strides and groups are right. A value that is not a
spike (an analog input, a product, the result of two linear layers in a row) costs a multiplication at every
synapse, at every step, or once if it is constant. Where a connection reads both, as behind a concatenation,
spikes cost additions and the other values multiplications.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, fx, nn

from rheobase.network import (
    POOLING,
    SYNAPTIC,
    MatMul,
    Neuron,
    Remembering,
    count_multiplications,
    count_products,
    traits_of,
)
from rheobase.simulation.plan import Plan, Step

Kind = Literal["spikes", "constant", "analog"] | Tensor
"""What the values of a signal are, or where each of a mixture is constant or analog: (2, ...)."""


@dataclass(frozen=True)
class Synapses:
    """What spikes and analog values cost in a network.

    Attributes:
        fan_out: For each source of spikes, including an input of spikes, the number of synapses behind each
            of its neurons, in the shape of one sample.
        mac_once: Multiplications that a constant input costs once.
        mac_per_step: Multiplications that analog values cost at every step.
        merging: The max-pools that make one value of several events of a neuron. Behind them a value that is
            not zero counts as one operation at every synapse, however many events it stands for.
    """

    fan_out: dict[str, Tensor]
    mac_once: int
    mac_per_step: int
    merging: tuple[str, ...]


def count_synapses(plan: Plan, pooled_units: bool = False) -> Synapses:
    """Count the synapses of a network.

    Args:
        plan: The network's plan.
        pooled_units: Count pooled values that are not zero at a step, instead of the spikes that went into
            an average pooling.
    """
    network = _Connections(plan, pooled_units)
    spiking = {plan.source} if plan.source_spikes else set()
    kinds: dict[fx.Node, Kind] = {}
    kinds[plan.source] = "spikes" if plan.source_spikes else "constant" if plan.source_still else "analog"
    once = per_step = 0
    for step in plan.steps:
        reads_spikes = all(i in spiking for i in step.inputs)
        keeps_spikes = reads_spikes and traits_of(step.operation).homogeneous(step.operation)
        if isinstance(step.operation, Neuron) or keeps_spikes:
            spiking.add(step.node)
        kinds[step.node] = "spikes" if step.node in spiking else network.find_kind(step, kinds)
        if isinstance(step.operation, SYNAPTIC) and not reads_spikes:
            macs, (constant, analog) = network.count_macs(step), _find_shares(kinds[step.inputs[0]])
            once, per_step = once + round(macs * constant), per_step + round(macs * analog)
        elif isinstance(step.operation, MatMul) and not reads_spikes:
            macs = network.count_macs(step)
            once, per_step = (once + macs, per_step) if step.still else (once, per_step + macs)
    fan_out = {
        step.name: network.count_fan_out(step.node)
        for step in plan.steps
        if step.node in spiking and network.sends(step.operation)
    }
    if plan.source_spikes:
        fan_out[plan.source_name] = network.count_fan_out(plan.source)
    merging = tuple(step.name for step in plan.steps if network.merges(step))
    return Synapses(fan_out, once, per_step, merging)


class _Connections:
    """Which synapses lie behind a node, up to the next sources of spikes."""

    def __init__(self, plan: Plan, pooled_units: bool) -> None:
        self.operations = {step.node: step.operation for step in plan.steps}
        self.shapes = {plan.source: plan.sample} | {step.node: step.shape for step in plan.steps}
        self.pooled_units = pooled_units

    def count_macs(self, step: Step) -> int:
        """The multiplications of a connection or a product of two signals whose values are analog."""
        shapes = [self.shapes[node] for node in step.inputs]
        if isinstance(step.operation, MatMul):
            return count_products(*shapes)
        return count_multiplications(step.operation, math.prod(shapes[0]), math.prod(step.shape))

    def find_kind(self, step: Step, kinds: Mapping[fx.Node, Kind]) -> Kind:
        """What a call that sends no spikes of its own makes of what it reads."""
        traits, read = traits_of(step.operation), [kinds[node] for node in step.inputs]
        if len({kind for kind in read if isinstance(kind, str)}) <= 1 and not any(map(torch.is_tensor, read)):
            return "constant" if step.still else "analog"
        if traits.spikes != "pass":
            return "analog"
        masks = [_mask(kinds[node], self.shapes[node]) for node in step.inputs]
        return traits.fan_out(step.operation, *masks) > 0

    def sends(self, operation: nn.Module) -> bool:
        """Whether an operation sends spikes of its own."""
        pooled = self.pooled_units and isinstance(operation, POOLING)
        return pooled or isinstance(operation, Neuron) or traits_of(operation).spikes == "restart"

    def merges(self, step: Step) -> bool:
        """Whether a call sends spikes of its own that stand for several events of a neuron."""
        restarts = traits_of(step.operation).spikes == "restart"
        return restarts and any(map(self._has_several, step.inputs))

    def _has_several(self, node: fx.Node) -> bool:
        """Whether a value of a node comes from a neuron with several events at a step."""
        operation = self.operations.get(node)
        if isinstance(operation, Neuron):
            return isinstance(operation, Remembering) and operation.several
        return operation is not None and any(map(self._has_several, node.all_input_nodes))

    def count_fan_out(self, node: fx.Node) -> Tensor:
        """How many synapses each value of a node reaches."""
        with torch.inference_mode(False):  # so that gradients flow, whatever mode the caller is in
            ones = torch.ones(1, *self.shapes[node], dtype=torch.float64, device="cpu", requires_grad=True)
            total = self.reach(node, ones)
            gradient = torch.autograd.grad(total, ones, allow_unused=True)[0] if total.requires_grad else None
        return (torch.zeros_like(ones[0]) if gradient is None else gradient[0]).long()

    def reach(self, node: fx.Node, x: Tensor) -> Tensor:
        """How many synapses a signal of ones reaches from a node."""
        total = x.new_zeros(())
        for user in node.users:
            if user not in self.operations:
                continue  # the read-out itself: spikes are only summed there
            operation = self.operations[user]
            if isinstance(operation, nn.Linear):
                total = total + x.sum() * operation.out_features
            elif isinstance(operation, SYNAPTIC):
                # All channels of a group are alike, so that one stands for them.
                reached = operation.out_channels // operation.groups  # type: ignore[operator]
                total = total + _all_ones(operation)(x.sum(1, keepdim=True)).sum() * reached
            elif isinstance(operation, MatMul):  # an event adds a row or a column of the other's counts
                first, second = user.all_input_nodes
                total = total + x.sum() * (
                    self.shapes[second][-1] if node is first else self.shapes[first][-2]
                )
            elif traits_of(operation).spikes == "end":
                total = total + x.expand(1, *self.shapes[user]).sum()
            elif not self.sends(operation):
                others = (x if i is node else x.new_zeros(1, *self.shapes[i]) for i in user.all_input_nodes)
                total = total + self.reach(user, traits_of(operation).fan_out(operation, *others))
        return total


def _mask(kind: Kind, shape: tuple[int, ...]) -> Tensor:
    """Where the values of a signal are constant, and where they are analog: (2, ...), ones and zeros."""
    if not isinstance(kind, str):
        return kind.double()
    rows = torch.tensor([kind == "constant", kind == "analog"], dtype=torch.float64, device="cpu")
    return rows.view(2, *[1] * len(shape)).expand(2, *shape)


def _find_shares(kind: Kind) -> tuple[float, float]:
    """The shares of a signal's values that are constant, and that are analog."""
    if isinstance(kind, str):
        return float(kind == "constant"), float(kind == "analog")
    constant, analog = kind
    return float((constant & ~analog).double().mean()), float(analog.double().mean())


def _all_ones(operation: nn.Module) -> nn.Module:
    """The connections of a convolution between one channel and one other, with every weight one."""
    names = ["kernel_size", "stride", "padding", "dilation", "padding_mode"]
    names += ["output_padding"] if operation.transposed else []
    settings = {name: getattr(operation, name) for name in names}
    # Not on a device with numbers, as it would draw random weights.
    ones = type(operation)(1, 1, **settings, bias=False, device="meta")
    weight = torch.ones(1, 1, *settings["kernel_size"], dtype=torch.float64, device="cpu")
    ones.weight = nn.Parameter(weight, requires_grad=False)
    return ones
