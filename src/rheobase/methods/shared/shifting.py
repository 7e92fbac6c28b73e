"""Add a constant current to a site."""

import torch
from torch import Tensor, fx, nn

from rheobase.network import SNN, SYNAPTIC, Add, Group, Scale, find_node, insert_call


def shift_current(snn: SNN, site: str, values: Tensor) -> None:
    """Add a constant to the current of a site at every step: one number, or one per channel.

    It goes into the bias of the weights whose output is the current. After a residual add these are the
    weights at the end of the main branch, the one with more operations. Where no weights feed the site alone,
    a separate shift is inserted before the neurons. The provenance records the constant.
    """
    snn.provenance.record_shift(site, values)
    node = find_node(snn.module.graph, site)
    weights = find_weights(snn, site)
    operation = None if weights is None else snn.module.get_submodule(str(weights.target))
    if operation is None or (isinstance(operation, nn.Linear) and len(node.meta.get("shape", (0, 0))) != 2):
        _shift_before(snn.module, node, values)
        return
    count = operation.out_features if isinstance(operation, nn.Linear) else operation.out_channels
    assert isinstance(count, int)
    old, weight = operation.bias, operation.weight
    assert isinstance(weight, Tensor)
    bias = values.to(weight).expand(count) + (old if isinstance(old, Tensor) else 0)
    operation.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)


def shift_by_half(snn: SNN, steps: int) -> None:
    """Add θ/(2·steps) to the current of every neuron that can fire: half a threshold over a run.

    In a group θ is the threshold of its last member, which is what it rounds to.
    """
    for site, neuron in snn.neurons.items():
        unit = neuron.threshold * neuron.sizes[-1] if isinstance(neuron, Group) else neuron.threshold
        shift_current(snn, site, unit.where(~neuron.dead, 0) / (2 * steps))


def find_weights(snn: SNN, site: str) -> fx.Node | None:
    """The weights whose output is a site's current, or a summand of it, and nothing else; or None."""
    return _find(snn.module, find_node(snn.module.graph, site).all_input_nodes[0])


def _find(module: fx.GraphModule, node: fx.Node) -> fx.Node | None:
    if node.op != "call_module" or len(node.users) != 1:
        return None
    operation = module.get_submodule(str(node.target))
    if isinstance(operation, SYNAPTIC):
        return node
    if not isinstance(operation, Add):
        return None
    branches = sorted(node.all_input_nodes, key=_depth, reverse=True)
    return next((found for branch in branches if (found := _find(module, branch))), None)


def _depth(node: fx.Node) -> int:
    """The length of the longest path from the input to a node."""
    depths: dict[fx.Node, int] = {}
    for earlier in node.graph.nodes:
        depths[earlier] = 1 + max((depths[i] for i in earlier.all_input_nodes), default=0)
        if earlier is node:
            break
    return depths[node]


def _shift_before(module: fx.GraphModule, node: fx.Node, values: Tensor) -> None:
    source = node.all_input_nodes[0]
    before = module.get_submodule(str(source.target)) if source.op == "call_module" else None
    if isinstance(before, Scale) and len(source.users) == 1 and before.shift.dim() < 2:
        shift = before.shift + values
        module.set_submodule(str(source.target), Scale(before.scale.expand_as(shift), shift))
        return
    scale = Scale(torch.ones_like(values), values)
    added = insert_call(module, node, f"{node.target}_shift", scale, source)
    added.meta.update(source.meta)
    node.replace_input_with(source, added)
    module.recompile()
