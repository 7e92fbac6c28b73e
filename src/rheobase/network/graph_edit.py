"""Look up, add and remove the calls of an fx graph, and find out the shapes in it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn


def find_node(graph: fx.Graph, name: str) -> fx.Node:
    """The call of that name.

    Raises:
        KeyError: If there is none.
    """
    found: fx.Node | None = next(iter(graph.find_nodes(op="call_module", target=name)), None)
    if found is None:
        raise KeyError(f"the graph has no call named {name!r}")
    return found


def find_result(graph: fx.Graph) -> fx.Node:
    """The node whose value the graph returns."""
    result = graph.output_node().args[0]
    assert isinstance(result, fx.Node)
    return result


def operation_of(module: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """What a node calls; the input and the output call nothing."""
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """The first of name, name_2, name_3 … that is not taken."""
    free, number = name, 1
    while taken(free):
        number += 1
        free = f"{name}_{number}"
    return free


def insert_call(
    module: fx.GraphModule, before: fx.Node, name: str, operation: nn.Module, *inputs: fx.Node
) -> fx.Node:
    """Call an operation, under a free name, before another node."""
    free = free_name(name, {str(node.target) for node in module.graph.nodes}.__contains__)
    module.add_submodule(free, operation)
    with module.graph.inserting_before(before):
        return module.graph.call_module(free, inputs)


def replace_node(node: fx.Node, new: fx.Node) -> None:
    """Let every reader of a node read another one instead, and remove the node."""
    node.replace_all_uses_with(new, lambda user: user is not new)
    node.graph.erase_node(node)


def run_values(module: fx.GraphModule, x: Tensor) -> dict[fx.Node, Any]:
    """What every node gives for an input. Tensors are returned without their data, on the meta device."""
    values = _Values(module)
    with torch.no_grad():
        values.run(x)
    return values.seen


class _Values(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.seen: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        self.seen[n] = fx.node.map_aggregate(
            value, lambda v: torch.empty_like(v, device="meta") if isinstance(v, Tensor) else v
        )
        return value
