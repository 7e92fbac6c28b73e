"""Write average pools as convolutions, for readers without pools and for windows that no grid holds."""

import math
from collections.abc import Callable

from torch import fx, nn

from rheobase.exchange.nir.draft import Draft, NirError, make_layer, mean_weights
from rheobase.network import Reshape


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """A size as height and width."""
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def area(pool: nn.AvgPool2d) -> int:
    """Number of values in a window."""
    return math.prod(pair(pool.kernel_size))


def is_power_of_two(number: int) -> bool:
    """Whether a mean over that many values is a shift of bits."""
    return number & (number - 1) == 0


def fold_pools(draft: Draft, wanted: Callable[[nn.AvgPool2d], bool]) -> None:
    """Fold pools into the layer that reads them, or else write them as convolutions of their own."""
    for node in draft.calls:
        pool = draft.operation(node)
        if not isinstance(pool, nn.AvgPool2d) or not wanted(pool):
            continue
        reader = next(iter(node.users))
        layer = draft.operation(reader) if len(node.users) == 1 else None
        if isinstance(layer, nn.Conv2d) and _composes(draft, node, pool, layer):
            _compose(draft, node, pool, reader, layer)
        elif isinstance(layer, Reshape) and _tiles(draft, node, pool, reader):
            _spread(draft, node, pool, reader)
        else:
            draft.set(node, _alone(draft, node, pool))


def _is_whole(draft: Draft, node: fx.Node, pool: nn.AvgPool2d) -> bool:
    """Whether the windows cover the signal completely."""
    sizes = draft.input_shape(node)[1:]
    return not any(n % k for n, k in zip(sizes, pair(pool.kernel_size), strict=True))


def _is_disjoint(pool: nn.AvgPool2d) -> bool:
    return pair(pool.kernel_size) == pair(pool.stride) and not any(pair(pool.padding))


def _composes(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, conv: nn.Conv2d) -> bool:
    """Whether pool and convolution are one square convolution, also at the edges."""
    height, width = pair(pool.kernel_size)
    edges = _is_whole(draft, node, pool) or not any(conv.padding)
    return _is_disjoint(pool) and height == width and conv.dilation == (1, 1) and edges


def _compose(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, reader: fx.Node, conv: nn.Conv2d) -> None:
    k, _ = pair(pool.kernel_size)
    weight = conv.weight.double().repeat_interleave(k, 2).repeat_interleave(k, 3) / k**2
    assert not isinstance(conv.padding, str)
    stride, padding = (tuple(n * k for n in v) for v in (conv.stride, conv.padding))
    draft.set(reader, make_layer(weight, conv.bias, stride=stride, padding=padding))
    draft.replace(node, node.all_input_nodes[0])


def _tiles(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, flat: fx.Node) -> bool:
    """Whether the windows cover the signal once, and only linear layers read the flattened result."""
    linear = all(isinstance(draft.operation(reader), nn.Linear) for reader in flat.users)
    return linear and _is_disjoint(pool) and _is_whole(draft, node, pool)


def _spread(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, flat: fx.Node) -> None:
    channels, height, width = shape = draft.input_shape(node)
    k, m = pair(pool.kernel_size)
    for reader in flat.users:
        linear = draft.operation(reader)
        assert isinstance(linear, nn.Linear)
        maps = linear.weight.double().view(linear.out_features, channels, height // k, width // m)
        spread = maps.repeat_interleave(k, 2).repeat_interleave(m, 3).flatten(1) / (k * m)
        draft.set(reader, make_layer(spread, linear.bias))
    draft.replace(node, node.all_input_nodes[0])
    draft.shapes[flat] = (math.prod(shape),)


def _alone(draft: Draft, node: fx.Node, pool: nn.AvgPool2d) -> nn.Module:
    kernel, stride, padding = (pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
    if kernel[0] != kernel[1]:
        raise NirError.at(
            str(node.target), f"a pool over {kernel} is no square convolution", "use a square pool"
        )
    return make_layer(mean_weights(draft.input_shape(node)[0], kernel), stride=stride, padding=padding)
