"""A network as hardware sees it: its layers of weights in whole numbers, and what stands around them."""

import math
from dataclasses import dataclass

from torch import Tensor, fx, nn

from rheobase.exchange.nir.draft import Draft
from rheobase.exchange.nir.grid import Grid
from rheobase.network import Add, IntegrateFire, Reshape


@dataclass(frozen=True)
class CoreLayer:
    """One layer of weights.

    Attributes:
        name: Its name.
        kernel: The sides of its kernel; of a linear layer, those of the map it reads.
        stride: Its stride.
        inputs: Channels, height and width of what it reads; a linear layer's is what was flattened.
        outputs: Channels, height and width of what it gives.
        analog: Whether it reads the input as numbers that flow as a current.
        neuron: The site behind it, if there is one.
        readers: How many layers read that site.
        joins: Whether other layers feed the same site.
        fan_in: How many inputs one of its outputs reads at most.
        weight: Its largest weight, in whole numbers; None where nothing was quantised.
        bias: Its largest bias, in units of the current.
        threshold: The threshold behind it, in the same units.
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


def _layer(
    draft: Draft, node: fx.Node, operation: nn.Conv1d | nn.Conv2d | nn.Linear, grid: Grid | None
) -> CoreLayer:
    source, shape = _behind(draft, node)
    site, joins = _ahead(draft, node)
    name = str(node.target)
    size = _map(shape)
    kernel, stride = size[1:], (1, 1)
    if not isinstance(operation, nn.Linear):
        sides = (operation.kernel_size, operation.stride)
        kernel, stride = ((v[0], v[1] if len(v) == 2 else 1) for v in sides)
    unit = None if grid is None else 2.0 ** grid.currents[name if site is None else str(site.target)]
    weights = None if grid is None else 2.0 ** grid.exponents[name]
    return CoreLayer(
        name=name,
        kernel=kernel,
        stride=stride,
        inputs=size,
        outputs=_map(draft.shapes[node]),
        analog=source.op == "placeholder" and draft.snn.coding.constant,
        neuron=None if site is None else str(site.target),
        readers=0 if site is None else _count_readers(draft, site),
        joins=joins,
        fan_in=int((operation.weight != 0).flatten(1).sum(1).max()),
        weight=None if weights is None else _largest(operation.weight * weights),
        bias=None if unit is None else 0 if operation.bias is None else _largest(operation.bias * unit),
        threshold=None if unit is None else round(unit),
    )


def _behind(draft: Draft, node: fx.Node) -> tuple[fx.Node, tuple[int, ...]]:
    """Where a layer's signal comes from, and its shape before it was flattened."""
    source = node.args[0]
    assert isinstance(source, fx.Node)
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


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """A size as height and width."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _largest(values: Tensor) -> int:
    return round(values.abs().max().item())


def bits_for(value: float) -> int:
    """How many bits a whole number of this size needs, with its sign."""
    return 1 + math.ceil(math.log2(abs(value) + 1)) if value else 1


def device_memory(layer: CoreLayer) -> tuple[int, int]:
    """What a layer takes of a DynapCNN core: kernel and neuron memory, in words.

    Kernels take c·2^(⌈log₂ kx·ky⌉ + ⌈log₂ f⌉), neurons f·2^(⌈log₂ fy⌉ + ⌈log₂ fx⌉).
    """
    (channels, *_), (features, height, width) = layer.inputs, layer.outputs
    up = [math.ceil(math.log2(n)) for n in (layer.kernel[0] * layer.kernel[1], features, height, width)]
    return channels * 2 ** (up[0] + up[1]), features * 2 ** (up[2] + up[3])
