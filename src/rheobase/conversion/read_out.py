"""Activations of the output: a sigmoid of scores, a tanh of actions.

No layer reads them, so nothing needs their values as events. Where a method computes on sums, they are
functions of the sums at the output: no neuron rounds the answer to its levels, or clips it to what it was on
the calibration data.
"""

from torch import fx, nn

from rheobase.conversion.lowering import Lowering
from rheobase.network import ELEMENTWISE, SYNAPTIC, Activation, Elementwise, MatMul, Smooth


def compute_on_sums(lowering: Lowering) -> None:
    """Turn the sites whose values only leave a network into analog functions, unless no site would remain."""
    leaving = find_leaving(lowering.graph, lowering.root)
    found = {
        key: placed
        for key, (placed, _, _) in lowering.sites.items()
        if placed in leaving and _function(lowering.root, placed) in ELEMENTWISE
    }
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
    return module.name if isinstance(module, Smooth) and module.parameter is None else ""
