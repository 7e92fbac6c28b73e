"""Average pools written as convolutions, for readers that drop pools and for windows off the grid."""

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from rheobase.exchange.nir.canonical import NirError
from rheobase.exchange.nir.draft import Draft
from rheobase.network import Reshape


def fold_pools(draft: Draft, wanted: Callable[[nn.AvgPool2d], bool]) -> None:
    """Write pools as part of the layer that reads them, else as convolutions of their own."""
    for node in draft.calls:
        pool = draft.operation(node)
        if not isinstance(pool, nn.AvgPool2d) or not wanted(pool):
            continue
        reader = next(iter(node.users)) if len(node.users) == 1 else None
        layer = draft.operation(reader) if reader is not None else None
        if reader is not None and isinstance(layer, nn.Conv2d) and _composes(draft, node, pool, layer):
            _compose(draft, node, pool, reader, layer)
        elif reader is not None and isinstance(layer, Reshape) and _tiles(draft, node, pool):
            _spread(draft, node, pool, reader)
        else:
            draft.set(node, _alone(draft, node, pool))


def area(pool: nn.AvgPool2d) -> int:
    """How many values a window has."""
    height, width = _pair(pool.kernel_size)
    return height * width


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _sizes(draft: Draft, node: fx.Node) -> tuple[int, ...]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return draft.shapes[source]


def _side_by_side(pool: nn.AvgPool2d) -> bool:
    return _pair(pool.kernel_size) == _pair(pool.stride) and not any(_pair(pool.padding))


def _composes(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, conv: nn.Conv2d) -> bool:
    """Whether pool and convolution are one convolution: also at the edges, and square."""
    height, width = _pair(pool.kernel_size)
    _, *sizes = _sizes(draft, node)
    whole = sizes[0] % height == 0 and sizes[1] % width == 0
    padded = any(conv.padding)
    return _side_by_side(pool) and height == width and conv.dilation == (1, 1) and (whole or not padded)


def _compose(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, reader: fx.Node, conv: nn.Conv2d) -> None:
    k = _pair(pool.kernel_size)[0]
    weight = conv.weight.double().repeat_interleave(k, 2).repeat_interleave(k, 3) / k**2
    assert not isinstance(conv.padding, str)
    stride, padding = ((v[0] * k, v[1] * k) for v in (conv.stride, conv.padding))
    wide = nn.Conv2d(conv.in_channels, conv.out_channels, tuple(weight.shape[2:]), stride, padding)  # type: ignore[arg-type]
    wide.weight, wide.bias = nn.Parameter(weight.float()), conv.bias
    draft.set(reader, wide)
    draft.replace(node, node.args[0])  # type: ignore[arg-type]


def _tiles(draft: Draft, node: fx.Node, pool: nn.AvgPool2d) -> bool:
    """Whether the windows cover the signal once, and behind the flattening there are linear layers only."""
    height, width = _pair(pool.kernel_size)
    _, *sizes = _sizes(draft, node)
    flat = next(iter(node.users))
    linear = all(isinstance(draft.operation(reader), nn.Linear) for reader in flat.users)
    return linear and _side_by_side(pool) and sizes[0] % height == 0 and sizes[1] % width == 0


def _spread(draft: Draft, node: fx.Node, pool: nn.AvgPool2d, flat: fx.Node) -> None:
    channels, height, width = _sizes(draft, node)
    k, m = _pair(pool.kernel_size)
    for reader in flat.users:
        linear = draft.operation(reader)
        assert isinstance(linear, nn.Linear)
        maps = linear.weight.double().view(linear.out_features, channels, height // k, width // m)
        spread = maps.repeat_interleave(k, 2).repeat_interleave(m, 3).flatten(1) / (k * m)
        wide = nn.Linear(channels * height * width, linear.out_features)
        wide.weight, wide.bias = nn.Parameter(spread.float()), linear.bias
        draft.set(reader, wide)
    draft.replace(node, node.args[0])  # type: ignore[arg-type]
    draft.shapes[flat] = (channels * height * width,)


def _alone(draft: Draft, node: fx.Node, pool: nn.AvgPool2d) -> nn.Conv2d:
    kernel, stride, padding = (_pair(v) for v in (pool.kernel_size, pool.stride, pool.padding))
    if kernel[0] != kernel[1]:
        raise NirError(f"{node.target}: a pool over windows of {kernel} cannot be a square convolution")
    channels = _sizes(draft, node)[0]
    conv = nn.Conv2d(channels, channels, kernel, stride, padding, bias=False)
    weight = torch.eye(channels)[..., None, None].repeat(1, 1, *kernel) / (kernel[0] * kernel[1])
    conv.weight = nn.Parameter(weight)
    return conv
