"""Synapses: how many operations one spike causes.

A spike costs one addition at every synapse it reaches. The fan-out of each neuron is counted exactly: the
all-ones form of the connections is applied to it, so that borders, strides and groups are right. What is not
a spike (an analog input, a product, the result of two linear layers in a row) costs a multiplication at
every synapse, at every step.
"""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from rheobase.network import (
    POOLING,
    SYNAPTIC,
    Add,
    Concat,
    MaxPool,
    Mean,
    Neuron,
    Product,
    Scale,
    count_multiplications,
)
from rheobase.simulation.plan import Schedule


@dataclass(frozen=True)
class Synapses:
    """What spikes and analog values cost in a network.

    Attributes:
        fan_out: For each source of spikes, also the input where that is one, the synapses behind each of its
            neurons, in the sample's shape.
        mac_once: Multiplications that a constant input costs once.
        mac_per_step: Multiplications that analog values cost at every step.
    """

    fan_out: dict[str, Tensor]
    mac_once: int
    mac_per_step: int


def count_synapses(plan: Schedule, pooled_units: bool = False) -> Synapses:
    """Count the synapses of a scheduled network.

    Args:
        plan: The schedule.
        pooled_units: A spike that goes through average pooling is counted as a spike of its own; with this
            the pooled unit is counted instead, once at each step in which it is not zero.
    """
    network = _Connections(plan, (Neuron, MaxPool, *(POOLING if pooled_units else ())))
    spiking = {plan.source} if plan.source_spikes else set()
    once = per_step = 0
    for step in plan.steps:
        weighs = isinstance(step.operation, (*SYNAPTIC, Product))
        routed = not weighs and all(i in spiking for i in step.inputs)
        if isinstance(step.operation, Neuron) or (routed and not _shifts(step.operation)):
            spiking.add(step.node)
        if isinstance(step.operation, SYNAPTIC) and not all(i in spiking for i in step.inputs):
            inputs, outputs = (math.prod(network.shapes[node]) for node in (step.inputs[0], step.node))
            macs = count_multiplications(step.operation, inputs, outputs)
            once, per_step = (once + macs, per_step) if step.still else (once, per_step + macs)
    fan_out = {
        str(step.node.target): network.count_fan_out(step.node)
        for step in plan.steps
        if step.node in spiking and isinstance(step.operation, network.sources)
    }
    if plan.source_spikes:
        fan_out[plan.source_name] = network.count_fan_out(plan.source)
    return Synapses(fan_out, once, per_step)


def _shifts(operation: nn.Module) -> bool:
    return isinstance(operation, Scale) and operation.shifted


class _Connections:
    """Which synapses lie behind a node, up to the next sources of spikes."""

    def __init__(self, plan: Schedule, sources: tuple[type[nn.Module], ...]) -> None:
        self.operations = {step.node: step.operation for step in plan.steps}
        self.shapes = {plan.source: plan.sample} | {step.node: step.shape for step in plan.steps}
        self.sources = sources

    def count_fan_out(self, node: fx.Node) -> Tensor:
        """How many synapses each value of a node reaches."""
        with torch.inference_mode(False):  # which lets gradients flow, whatever the caller is in
            ones = torch.ones(1, *self.shapes[node], dtype=torch.float64, device="cpu", requires_grad=True)
            total = self.reach(node, ones)
            gradient = torch.autograd.grad(total, ones, allow_unused=True)[0] if total.requires_grad else None
        return torch.zeros_like(ones[0]) if gradient is None else gradient[0]

    def reach(self, node: fx.Node, x: Tensor) -> Tensor:
        """How many synapses a signal of ones reaches from a node."""
        total = x.new_zeros(())
        for user in node.users:
            if user not in self.operations:
                continue  # the read-out itself: spikes are only summed there
            operation = self.operations[user]
            if isinstance(operation, SYNAPTIC):
                total = total + _all_ones(operation)(x).sum()
            elif isinstance(operation, (Neuron, Product)):
                total = total + x.expand(1, *self.shapes[user]).sum()
            elif isinstance(operation, self.sources):
                continue  # it sends spikes of its own
            else:
                total = total + self.reach(user, self._route(operation, user, node, x))
        return total

    def _route(self, operation: nn.Module, user: fx.Node, node: fx.Node, x: Tensor) -> Tensor:
        """A signal of ones behind an operation that only moves or averages spikes."""
        if isinstance(operation, POOLING):
            return _members(operation, x)
        if isinstance(operation, Mean):
            return x.sum(operation.dims, keepdim=operation.keepdim)
        if isinstance(operation, Concat):
            parts = [x if i is node else x.new_zeros(1, *self.shapes[i]) for i in user.all_input_nodes]
            return operation(*parts)  # type: ignore[no-any-return]
        if isinstance(operation, (Add, Scale)):
            return x.expand(1, *self.shapes[user])
        return operation(x)  # type: ignore[no-any-return]


def _members(pool: nn.Module, x: Tensor) -> Tensor:
    """The sum over each window of an average pooling: every input counts once in each window it lies in."""
    if isinstance(pool, nn.AvgPool1d):
        k, s, p = (_one(v) for v in (pool.kernel_size, pool.stride, pool.padding))
        return nn.functional.avg_pool2d(
            x.unsqueeze(2), (1, k), (1, s), (0, p), pool.ceil_mode, True, 1
        ).squeeze(2)
    if isinstance(pool, (nn.AvgPool2d, nn.AvgPool3d)):
        summed: Tensor = (
            nn.functional.avg_pool2d if isinstance(pool, nn.AvgPool2d) else nn.functional.avg_pool3d
        )(x, pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode, True, 1)
        return summed
    averaged: Tensor = pool(x)
    for dim in range(2, x.dim()):
        size, outputs = x.shape[dim], averaged.shape[dim]
        # The windows of adaptive pooling: from floor(i·size/outputs) to ceil((i + 1)·size/outputs).
        lengths = [-(-(i + 1) * size // outputs) - i * size // outputs for i in range(outputs)]
        averaged = averaged * torch.tensor(lengths, device=x.device).view(-1, *[1] * (x.dim() - 1 - dim))
    return averaged


def _one(extent: int | tuple[int, ...]) -> int:
    return extent if isinstance(extent, int) else extent[0]


def _all_ones(operation: nn.Module) -> nn.Module:
    """The same connections with every weight one and every bias zero."""
    ones = copy.deepcopy(operation).cpu().double().requires_grad_(False)
    for name, parameter in ones.named_parameters():
        parameter.fill_(float(name == "weight"))
    return ones
