"""A captured network: a graph of operations with named sites."""

from dataclasses import dataclass, field

from torch import Tensor, fx, nn


@dataclass(frozen=True)
class Site:
    """A place in the network with an activation, which conversion replaces by a neuron.

    Attributes:
        name: Its name.
        activation: What is there.
        bound: The largest value, if there is one.
        layout: The shape of one number per channel, with −1 for the channels: (−1,) if they are dimension 1,
            (1, −1) if they are dimension 2 of three; () for one number for all.
    """

    name: str
    activation: nn.Module
    bound: float | None
    layout: tuple[int, ...] = (-1,)

    @property
    def channels(self) -> int:
        """The dimension of the channels; 1 if there is one number for all of them."""
        return 1 + self.layout.index(-1) if self.layout else 1


@dataclass
class Network:
    """A captured network: an fx graph in which every call is one operation, and its sites in order.

    Attributes:
        module: The graph.
        sites: The sites.
        outputs: The shape of each output for one sample, by name, if the model has several; they are joined.
        excluded: The tokens that inputs must not hold; see `require_others`.
    """

    module: fx.GraphModule
    sites: list[Site]
    outputs: dict[str, list[int]] = field(default_factory=dict)
    excluded: list[int] = field(default_factory=list)

    def operation(self, node: fx.Node) -> nn.Module:
        """The module a node calls."""
        return self.module.get_submodule(str(node.target))


def require_others(tokens: Tensor, excluded: list[int]) -> None:
    """Refuse inputs with tokens that a model treats apart, such as padding: the network has no mask."""
    for token in excluded:
        if (tokens == token).any():
            raise ValueError(
                f"the inputs hold the token {token}, which the model treats apart, as padding: pass texts of "
                "one length without it"
            )
