"""A simulator of its own, as plain as the equations: one loop over steps, in double precision or integers.

It shares no code with the engine. For networks and inputs on a grid every sum is exact in float32 and in
float64 alike, so that spikes must be equal, not close.
"""

import torch
from torch import Tensor, fx, nn

from rheobase import SNN
from rheobase.network import Add, Concat, IntegrateFire, MaxPool, Product, Reshape


def on_grid(snn: SNN) -> SNN:
    """Round weights to multiples of 1/64 and thresholds to multiples of 1/16, in place."""
    for module in snn.module.modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if name == "threshold":
                rounded = (tensor * 16).round().clamp(min=1) / 16
                tensor.data.copy_(torch.where(tensor < 1e6, rounded, tensor))
            elif name in ("weight", "bias", "scale", "shift"):
                tensor.data.copy_((tensor * 64).round().clamp(-127, 127) / 64)
    return snn


def grid_inputs(x: Tensor) -> Tensor:
    """Inputs rounded to multiples of 1/16."""
    return (x * 16).round() / 16


class Oracle:
    """Runs an SNN with constant input currents: spikes of every site and step, and the mean outputs."""

    def __init__(self, snn: SNN, x: Tensor, integers: bool = False) -> None:
        self.snn, self.graph, self.integers = snn, snn.module.graph, integers
        self.layers = {
            n: snn.module.get_submodule(n.target) for n in self.graph.nodes if n.op == "call_module"
        }
        self.x = x.double()
        self.membranes: dict[fx.Node, Tensor] = {}
        self.sums: dict[fx.Node, list[Tensor]] = {}
        self.given: dict[fx.Node, Tensor] = {}
        self.spikes: dict[str, list[Tensor]] = {site: [] for site in snn.sites}

    def run(self, steps: int) -> tuple[dict[str, Tensor], Tensor]:
        total, means = None, []
        for t in range(1, steps + 1):
            values: dict[fx.Node, Tensor] = {}
            for node in self.graph.nodes:
                if node.op == "placeholder":
                    values[node] = self.x
                elif node.op == "call_module":
                    values[node] = self.call(node, [values[i] for i in node.args], t, values)
                elif node.op == "output":
                    output = values[node.args[0]]
            total = output if total is None else total + output
            means.append(total / t)
        return {site: torch.stack(each) for site, each in self.spikes.items()}, torch.stack(means)

    def call(self, node: fx.Node, inputs: list[Tensor], t: int, values: dict[fx.Node, Tensor]) -> Tensor:
        layer = self.layers[node]
        if isinstance(layer, IntegrateFire):
            return self.fire(node, layer, inputs[0], values)
        if isinstance(layer, Add):
            return inputs[0] + inputs[-1]
        if isinstance(layer, Concat):
            return torch.cat(inputs, layer.dim)
        if isinstance(layer, Reshape):
            return inputs[0].reshape(len(inputs[0]), *layer.shape)
        if isinstance(layer, (MaxPool, Product)):
            sums = [a + b for a, b in zip(self.sums.get(node, [0] * len(inputs)), inputs, strict=True)]
            self.sums[node] = sums
            after = layer.pool(sums[0]) if isinstance(layer, MaxPool) else sums[0] * sums[-1] / t
            before = self.given.get(node, torch.zeros_like(after))
            self.given[node] = after
            return after - before
        return layer.double()(*inputs)

    def fire(
        self, node: fx.Node, neuron: IntegrateFire, current: Tensor, values: dict[fx.Node, Tensor]
    ) -> Tensor:
        shape = (-1, *[1] * (current.dim() - 2))
        theta = neuron.threshold.double().view(shape) if neuron.threshold.dim() else neuron.threshold.double()
        start = theta * neuron.initial.fraction
        if self.integers and (found := self.in_integers(node, neuron, values)):
            current, theta, start = found
        alive = theta < 1e6
        if node not in self.membranes:
            self.membranes[node] = torch.where(alive, start, 0).expand(current.shape).clone()
        u = self.membranes[node] + current
        fired = (u > theta if neuron.strict else u >= theta) & alive
        after = u - theta * fired if neuron.reset == "subtract" else u * ~fired
        self.membranes[node] = torch.where(alive, after, u)
        self.spikes[str(node.target)].append(fired)
        return fired.double()

    def in_integers(
        self, node: fx.Node, neuron: IntegrateFire, values: dict[fx.Node, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Current, threshold and start of a layer behind spikes, as integers of eight-bit weights."""
        source = node.args[0]
        layer = self.layers.get(source)
        spikes, unit = (
            self.counts(source.args[0], values) if isinstance(layer, (nn.Conv2d, nn.Linear)) else (None, 1)
        )
        if spikes is None:
            return None
        weight = layer.weight.float() * unit
        bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.float()
        theta = neuron.threshold.float().expand(len(weight))
        largest = torch.stack([bias, theta]).abs().amax(0)
        gain = torch.minimum(127 / weight.flatten(1).abs().amax(1), 2**20 / largest).double()
        whole = (weight.double() * gain.view(-1, *[1] * (weight.dim() - 1))).round().clamp(-127, 127)
        bias, theta, start = (
            (v.double() * gain).round().clamp(-(2**30), 2**30)
            for v in (bias, theta, theta * neuron.initial.fraction)
        )
        column = (-1, 1, 1) if isinstance(layer, nn.Conv2d) else (-1,)
        if isinstance(layer, nn.Conv2d):
            current = nn.functional.conv2d(spikes, whole, bias, layer.stride, layer.padding)
        else:
            current = nn.functional.linear(spikes, whole, bias)
        return current, theta.view(column), start.view(column)

    def counts(self, node: fx.Node, values: dict[fx.Node, Tensor]) -> tuple[Tensor | None, float]:
        """A node's value as counts of a unit, where it is spikes, pooled or reshaped spikes."""
        layer = self.layers.get(node)
        if isinstance(layer, IntegrateFire):
            return values[node], 1.0
        if isinstance(layer, Reshape):
            spikes, unit = self.counts(node.args[0], values)
            return (None if spikes is None else values[node] / unit), unit
        if isinstance(layer, nn.AvgPool2d):
            spikes, unit = self.counts(node.args[0], values)
            unit /= layer.kernel_size**2
            return (None if spikes is None else values[node] / unit), unit
        return None, 1.0
