"""A captured network: a graph of operations with named sites."""

from dataclasses import dataclass, field

from torch import fx, nn


@dataclass(frozen=True)
class Site:
    """A place in the network with an activation, which conversion replaces by a neuron."""

    name: str
    activation: nn.Module
    bound: float | None


@dataclass
class Network:
    """A captured network: an fx graph in which every call is one operation, and its sites in order.

    Attributes:
        module: The graph.
        sites: The sites.
        outputs: The shape of each output for one sample, by name, if the model has several; they are joined.
    """

    module: fx.GraphModule
    sites: list[Site]
    outputs: dict[str, list[int]] = field(default_factory=dict)

    def operation(self, node: fx.Node) -> nn.Module:
        """The module a node calls."""
        return self.module.get_submodule(str(node.target))
