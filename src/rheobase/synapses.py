"""Synapses: how many operations one spike causes.

A spike costs one addition at every synapse it reaches. The fan-out of each neuron is counted exactly: the
all-ones form of the connections is applied to it, so that borders, strides and groups are right. What is not
a spike (the analog input, a product, the result of two linear layers in a row) costs a multiplication at
every synapse, at every step.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn

from rheobase.neurons import Neuron
from rheobase.operations import POOLING, SYNAPTIC, Concat, MaxPool, Mean, Product, Scale
from rheobase.schedule import Schedule, Step


@dataclass(frozen=True)
class Synapses:
    """What spikes and analog values cost in a network.

    Attributes:
        fan_out: For each source of spikes, the synapses behind each of its neurons, in the sample's shape.
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
    sources = (Neuron, MaxPool, *(POOLING if pooled_units else ()))
    by_node = {step.node: step for step in plan.steps}
    spiking: set[fx.Node] = set()
    fan_out: dict[str, Tensor] = {}
    once = per_step = 0
    for step in plan.steps:
        weighs = isinstance(step.operation, (*SYNAPTIC, Product))
        routed = not weighs and all(i in spiking for i in step.inputs)
        if isinstance(step.operation, Neuron) or (routed and not _shifts(step.operation)):
            spiking.add(step.node)
        if isinstance(step.operation, SYNAPTIC) and not all(i in spiking for i in step.inputs):
            macs = _macs(step)
            once, per_step = (once + macs, per_step) if step.still else (once, per_step + macs)
    for step in plan.steps:
        if step.node in spiking and isinstance(step.operation, sources):
            ones = torch.ones(1, *step.shape, dtype=torch.float64, requires_grad=True)
            total = _reached(step.node, ones, by_node, sources)
            gradient = torch.autograd.grad(total, ones, allow_unused=True)[0] if total.requires_grad else None
            fan_out[str(step.node.target)] = torch.zeros_like(ones)[0] if gradient is None else gradient[0]
    return Synapses({k: v.detach() for k, v in fan_out.items()}, once, per_step)


def _shifts(operation: nn.Module) -> bool:
    return isinstance(operation, Scale) and operation.shifted


def _macs(step: Step) -> int:
    weight: Tensor = step.operation.weight  # type: ignore[assignment]
    outputs = torch.Size(step.shape).numel()
    if isinstance(step.operation, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return outputs * weight[:, 0].numel() // step.operation.groups
    return outputs * weight[0].numel()


def _reached(
    node: fx.Node, x: Tensor, steps: dict[fx.Node, Step], sources: tuple[type[nn.Module], ...]
) -> Tensor:
    """How many synapses a signal of ones reaches from a node."""
    total = x.new_zeros(())
    for user in node.users:
        if user not in steps:
            continue  # the read-out itself: spikes are only summed there
        operation = steps[user].operation
        if isinstance(operation, SYNAPTIC):
            total = total + _all_ones(operation)(x).sum()
        elif isinstance(operation, (Neuron, Product)):
            total = total + x.sum()
        elif isinstance(operation, sources):
            continue  # it sends spikes of its own
        else:
            total = total + _reached(user, _route(operation, user, node, x, steps), steps, sources)
    return total


def _route(
    operation: nn.Module, user: fx.Node, node: fx.Node, x: Tensor, steps: dict[fx.Node, Step]
) -> Tensor:
    """A signal of ones behind an operation that only moves or averages spikes."""
    if isinstance(operation, POOLING):
        return _members(operation, x)
    if isinstance(operation, Mean):
        return x.sum(operation.dims, keepdim=operation.keepdim)
    if isinstance(operation, Concat):
        parts = [x if i is node else x.new_zeros(1, *steps[i].shape) for i in user.all_input_nodes]
        return operation(*parts)  # type: ignore[no-any-return]
    if len(user.all_input_nodes) > 1 or isinstance(operation, Scale):
        return x
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
        averaged = averaged * torch.tensor(lengths).view(-1, *[1] * (x.dim() - 1 - dim))
    return averaged


def _one(extent: int | tuple[int, ...]) -> int:
    return extent if isinstance(extent, int) else extent[0]


def _all_ones(operation: nn.Module) -> nn.Module:
    """The same connections with every weight one and every bias zero."""
    ones = copy.deepcopy(operation).cpu().double().requires_grad_(False)
    for name, parameter in ones.named_parameters():
        parameter.fill_(float(name == "weight"))
    return ones
