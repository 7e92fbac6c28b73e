"""Activations whose values no layer reads: a sigmoid of scores, a tanh of actions, a ReLU under a root.

Nothing needs their values as events. Where a method computes on sums, they are functions of the sums: no
neuron rounds an answer or the variance of a norm to its levels, or clips it to the calibration data. A ReLU
at the output stays a site.
"""

from torch import fx, nn

from rheobase.conversion.lowering import Lowering
from rheobase.network import (
    ELEMENTWISE,
    SYNAPTIC,
    Activation,
    Elementwise,
    MatMul,
    Permute,
    Rectifier,
    Reshape,
    Scale,
    Smooth,
)


def compute_on_sums(lowering: Lowering) -> None:
    """Turn the sites whose values no layer reads into analog functions, unless no site would remain."""
    leaving = find_leaving(lowering.graph, lowering.root)

    def is_analog(placed: fx.Node) -> bool:
        function = _function(lowering.root, placed)
        if function == "relu":
            return _is_under_root(placed, lowering.root)
        return placed in leaving and function in ELEMENTWISE

    found = {key: placed for key, (placed, _, _) in lowering.sites.items() if is_analog(placed)}
    if len(found) == len(lowering.sites) + len(lowering.inner_sites):
        return
    for key, placed in found.items():
        function = _function(lowering.root, placed)
        lowering.root.set_submodule(str(placed.target), Elementwise(function))
        del lowering.sites[key]
        row = next(row for row in lowering.rows if placed in row.nodes)
        row.becomes = f"analog {function}"


def find_leaving(graph: fx.Graph, root: nn.Module) -> set[fx.Node]:
    """The nodes whose values reach the output without passing a layer with weights, a product or a site."""
    leaving: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.users and all(user.op == "output" or _passes(user, root, leaving) for user in node.users):
            leaving.add(node)
    return leaving


def _passes(node: fx.Node, root: nn.Module, leaving: set[fx.Node]) -> bool:
    reads_events = isinstance(root.get_submodule(str(node.target)), (*SYNAPTIC, MatMul, Activation))
    return node in leaving and not reads_events


def _function(root: nn.Module, node: fx.Node) -> str:
    module = root.get_submodule(str(node.target))
    if isinstance(module, Rectifier):
        return "relu" if module.bound is None else ""
    return module.name if isinstance(module, Smooth) and module.parameter is None else ""


def _is_under_root(node: fx.Node, root: nn.Module) -> bool:
    """Whether only roots read the values of a node, which a ReLU keeps from rounding below zero."""
    for user in node.users:
        module = root.get_submodule(str(user.target)) if user.op == "call_module" else None
        moved = isinstance(module, (Scale, Reshape, Permute)) and _is_under_root(user, root)
        if not moved and getattr(module, "function", "") not in ("sqrt", "rsqrt"):
            return False
    return bool(node.users)
