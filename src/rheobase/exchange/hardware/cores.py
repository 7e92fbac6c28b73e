"""A network as hardware sees it: layers of integer weights, and the neurons and connections around them."""

import math
from dataclasses import dataclass

from torch import Tensor, fx, nn

from rheobase.exchange.nir.draft import Draft, Weighted
from rheobase.exchange.nir.grid import Grid
from rheobase.exchange.nir.pooling import pair
from rheobase.network import Add, IntegrateFire, Reshape


@dataclass(frozen=True)
class CoreLayer:
    """One layer of weights.

    Attributes:
        name: Its name.
        kernel: The sides of its kernel; for a linear layer those of the map it reads.
        stride: Its stride.
        inputs: Channels, height and width of its input, for a linear layer before flattening.
        outputs: Channels, height and width of its output.
        analog: Whether it reads the input as a current.
        neuron: The site that it feeds, if any.
        readers: Number of layers that read that site.
        joins: Whether other layers feed the same site.
        fan_in: The largest number of inputs of one output.
        weight: The largest |weight| as an integer; None if nothing was quantised.
        bias: The largest |bias|, in units of the current.
        threshold: The threshold of the site, in the same units.
    """

    name: str
    kernel: tuple[int, int]
    stride: tuple[int, int]
    inputs: tuple[int, int, int]
    outputs: tuple[int, int, int]
    analog: bool
    neuron: str | None
    readers: int
    joins: bool
    fan_in: int
    weight: int | None
    bias: int | None
    threshold: int | None


def layers_of(draft: Draft, grid: Grid | None) -> list[CoreLayer]:
    """The layers of a rewritten network."""
    return [
        _layer(draft, node, operation, grid)
        for node in draft.calls
        if isinstance(operation := draft.operation(node), (nn.Conv1d, nn.Conv2d, nn.Linear))
    ]


def _layer(draft: Draft, node: fx.Node, operation: Weighted, grid: Grid | None) -> CoreLayer:
    source, shape = _behind(draft, node)
    site, joins = _ahead(draft, node)
    name, neuron = str(node.target), None if site is None else str(site.target)
    size = _map(shape)
    kernel, stride = size[1:], (1, 1)
    if not isinstance(operation, nn.Linear):
        kernel, stride = (pair((*v, 1)[:2]) for v in (operation.kernel_size, operation.stride))
    weight = bias = threshold = None
    if grid is not None:
        unit = 2.0 ** grid.currents[neuron or name]
        weight = _largest(operation.weight * 2.0 ** grid.exponents[name])
        bias = 0 if operation.bias is None else _largest(operation.bias * unit)
        threshold = round(unit)
    return CoreLayer(
        name=name,
        kernel=kernel,
        stride=stride,
        inputs=size,
        outputs=_map(draft.shapes[node]),
        analog=source.op == "placeholder" and draft.snn.coding.constant,
        neuron=neuron,
        readers=0 if site is None else _count_readers(draft, site),
        joins=joins,
        fan_in=int((operation.weight != 0).flatten(1).sum(1).max()),
        weight=weight,
        bias=bias,
        threshold=threshold,
    )


def _behind(draft: Draft, node: fx.Node) -> tuple[fx.Node, tuple[int, ...]]:
    """The source of the signal of a layer, and its shape before flattening."""
    source = node.all_input_nodes[0]
    shape = draft.shapes[source]
    while isinstance(draft.operation(source), (nn.AvgPool2d, Reshape)):
        source = source.all_input_nodes[0]
        if len(shape) == 1:
            shape = draft.shapes[source]
    return source, shape


def _ahead(draft: Draft, node: fx.Node) -> tuple[fx.Node | None, bool]:
    """The site that a layer feeds directly, and whether another layer feeds it too."""
    joins = False
    while len(node.users) == 1:
        node = next(iter(node.users))
        if isinstance(draft.operation(node), IntegrateFire):
            return node, joins
        if not isinstance(draft.operation(node), Add):
            break
        joins = True
    return None, joins


def _count_readers(draft: Draft, site: fx.Node) -> int:
    waiting, readers = list(site.users), 0
    while waiting:
        node = waiting.pop()
        if isinstance(draft.operation(node), (nn.Conv1d, nn.Conv2d, nn.Linear)) or node.op == "output":
            readers += 1
        else:
            waiting += node.users
    return readers


def _map(shape: tuple[int, ...]) -> tuple[int, int, int]:
    channels, height, width = (*shape, 1, 1)[:3]
    return channels, height, width


def _largest(values: Tensor) -> int:
    return round(values.abs().max().item())


def bits_for(value: float) -> int:
    """The number of bits of an integer of this size, with its sign."""
    return 1 + math.ceil(math.log2(abs(value) + 1)) if value else 1
