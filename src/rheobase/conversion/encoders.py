"""Encoders: sites in front of matrix products, which make their inputs events.

A layer with weights adds a weight for every event if its input is events: what neurons send, or what only
moves, adds or averages that. Where its input was computed from analog values, or is the result of another
layer with weights, an encoder is put in front of it: a neuron whose activation is the value itself. So are
both operands of a product of two signals.
"""

from torch import fx, nn

from rheobase.conversion.read_out import find_leaving
from rheobase.network import (
    ANALOG,
    SYNAPTIC,
    Activation,
    Embedding,
    Fixed,
    MatMul,
    Network,
    Rectifier,
    Site,
    Smooth,
    Softmax,
    free_name,
    operation_of,
    traits_of,
)

_PER_CHANNEL = (-1,)


def layout_of(module: fx.GraphModule, node: fx.Node) -> tuple[int, ...]:
    """How numbers per channel of a node's signal are laid out: by feature where a linear layer reads it."""
    linear = any(isinstance(operation_of(module, user), nn.Linear) for user in node.users)
    return _by_feature(node) if linear else _PER_CHANNEL


def insert_encoders(network: Network, always: bool | None) -> list[str]:
    """Put encoders into a network; the names of the new sites.

    Args:
        network: The captured network, changed in place.
        always: Whether every network gets them; None for those where layers read analog values.
    """
    module = network.module
    operations = {node: operation_of(module, node) for node in module.graph.nodes}
    leaving = find_leaving(module.graph, module) if always is None else set()
    analog = any(isinstance(o, ANALOG) for node, o in operations.items() if node not in leaving)
    if always is False or (always is None and not analog):
        return []
    events, raw = _trace_events(operations)
    encoders: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
    for node, operation in operations.items():
        if isinstance(operation, MatMul):
            driven, layout = events, _by_head
        elif isinstance(operation, SYNAPTIC):
            driven, layout = events | raw, _by_feature if isinstance(operation, nn.Linear) else _by_channel
        else:
            continue
        for source in [i for i in node.all_input_nodes if i not in driven]:
            key = source, layout(source)
            if key not in encoders:
                encoders[key] = _encode(network, *key)
            node.replace_input_with(source, encoders[key])
    if encoders:
        module.recompile()
        order = [str(node.target) for node in module.graph.nodes]
        network.sites.sort(key=lambda site: order.index(site.name))
    return [str(encoder.target) for encoder in encoders.values()]


def _trace_events(operations: dict[fx.Node, nn.Module | None]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes whose signal is events, and those that only move, add or average the input and constants."""
    events: set[fx.Node] = set()
    raw: set[fx.Node] = set()
    for node, operation in operations.items():
        driven = all(i in events or i in raw for i in node.all_input_nodes)
        if node.op == "placeholder" or isinstance(operation, (Embedding, Fixed)):
            raw.add(node)
        elif isinstance(operation, Activation):
            events.add(node)
        elif operation is not None and traits_of(operation).spikes != "end" and driven:
            (raw if all(i in raw for i in node.all_input_nodes) else events).add(node)
    return events, raw


def _by_channel(source: fx.Node) -> tuple[int, ...]:
    return _PER_CHANNEL


def _by_feature(source: fx.Node) -> tuple[int, ...]:
    """One number for each feature, the last dimension."""
    dims = len(source.meta.get("shape", ()))
    return (*[1] * (dims - 2), -1)


def _by_head(source: fx.Node) -> tuple[int, ...]:
    """One number for each head, the dimension before rows and columns."""
    dims = len(source.meta.get("shape", ()))
    return (*[1] * (dims - 4), -1, 1, 1) if dims > 3 else ()


def _encode(network: Network, source: fx.Node, layout: tuple[int, ...]) -> fx.Node:
    module = network.module
    shares = isinstance(operation_of(module, source), Softmax)
    encoder, bound = (Rectifier(1.0), 1.0) if shares else (Smooth("linear"), None)
    name = free_name(f"{source.target}_encoder", {str(n.target) for n in module.graph.nodes}.__contains__)
    module.add_submodule(name, encoder)
    with module.graph.inserting_after(source):
        node = module.graph.call_module(name, (source,))
    node.meta.update(source.meta)
    network.sites.append(Site(name, encoder, bound, layout))
    return node
