"""Connections in half precision, where no fused kernel computes them: those of neurons for few steps."""

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from rheobase.network import SYNAPTIC, Accumulating, Remembering, Waiting
from rheobase.simulation.plan import Plan


class HalfConnection(nn.Module):
    """A convolution or linear layer with weights, inputs and currents in half precision."""

    def __init__(self, operation: nn.Module, precision: torch.dtype) -> None:
        super().__init__()
        self.operation, self.precision = copy.deepcopy(operation).to(precision), precision
        self.operation.requires_grad_(False)
        if isinstance(operation, nn.Conv2d):
            self.operation.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.operation(x.to(self.precision))
        return y


def halve(plan: Plan, precision: torch.dtype) -> Plan:
    """Compute the connections between neurons for few steps in half precision; other plans stay as they are.

    Sums over many steps, as in max-pooling, would be too coarse.
    """
    neurons = [step.operation for step in plan.steps if step.fires]
    coarse = any(isinstance(step.operation, Accumulating) for step in plan.steps)
    if coarse or not all(isinstance(neuron, (Remembering, Waiting)) for neuron in neurons):
        return plan
    steps = tuple(
        replace(step, operation=HalfConnection(step.operation, precision))
        if isinstance(step.operation, SYNAPTIC) and not (step.still or step.tail)
        else step
        for step in plan.steps
    )
    return replace(plan, steps=steps)
