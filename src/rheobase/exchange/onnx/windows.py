"""Operators with windows: pooling, and what convolutions share with it."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.network import Pad


def _average_pool(call: Call) -> Signal:
    kernel = call.attribute("kernel_shape")
    if set(call.attribute("dilations", [1])) != {1}:
        raise Refusal("it is dilated", "use average pooling without dilation")
    counted = bool(call.attribute("count_include_pad", 0))
    rounded_up = bool(call.attribute("ceil_mode", 0))
    # With rounding up no window may start in the padding, as one could in zeros around the signal.
    x, padding = pad_evenly(call, len(kernel), kernel, zeros=counted and not rounded_up)
    kind = layer((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), len(kernel))
    stride = tuple(call.attribute("strides", [1] * len(kernel)))
    return call.emit(kind(tuple(kernel), stride, padding, rounded_up, counted), x)


def _max_pool(call: Call) -> Signal:
    kernel = call.attribute("kernel_shape")
    if len(call.node.output) > 1 and call.node.output[1]:
        raise Refusal("it returns indices, too", "use max-pooling without indices")
    if call.attribute("auto_pad", "NOTSET").startswith("SAME") and set(steps(call, 1)["dilation"]) != {1}:
        raise Refusal("readers disagree on automatic padding of dilated max-pooling", "use explicit pads")
    x, padding = pad_evenly(call, len(kernel), kernel, zeros=False)
    kind = layer((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), len(kernel))
    settings = {"stride": (1,) * len(kernel)} | steps(call, len(kernel))
    rounded_up = bool(call.attribute("ceil_mode", 0))
    return call.emit(kind(tuple(kernel), padding=padding, ceil_mode=rounded_up, **settings), x)


def global_pool(call: Call, *kinds: Any) -> Signal:
    """Pooling over all positions."""
    return call.emit(layer(kinds, call.rank - 2)(1))


def layer(kinds: Sequence[Any], places: int) -> Any:
    """The layer for so many spatial dimensions."""
    if not 1 <= places <= len(kinds):
        raise Refusal(f"it has {places} spatial dimensions", "use one to three")
    return kinds[places - 1]


def steps(call: Call, places: int) -> dict[str, tuple[int, ...]]:
    """The stride and the dilation of a node."""
    names = {"stride": "strides", "dilation": "dilations"}
    return {ours: tuple(call.attribute(theirs, [1] * places)) for ours, theirs in names.items()}


def pad_evenly(
    call: Call, places: int, kernel: list[int], zeros: bool = True
) -> tuple[Signal, tuple[int, ...]]:
    """The signal and its padding, equal on both sides; uneven zeros become a `Pad` of the signal."""
    before, after = _pads(call, places, kernel)
    if before == after:
        return call.x, tuple(before)
    if not zeros:
        raise Refusal("its padding is uneven", "pad equally on both sides")
    return call.emit(Pad(torch_order(before, after))), (0,) * places


def torch_order(before: list[int], after: list[int]) -> list[int]:
    """Paddings in the order of torch: both sides of the last dimension first."""
    return [amount for pair in reversed(list(zip(before, after, strict=True))) for amount in pair]


def _pads(call: Call, places: int, kernel: list[int]) -> tuple[list[int], list[int]]:
    way = call.attribute("auto_pad", "NOTSET")
    if way == "NOTSET":
        pads = call.attribute("pads", [0] * 2 * places)
        return pads[:places], pads[places:]
    if way == "VALID":
        return [0] * places, [0] * places
    settings = steps(call, places)
    small, large = [], []
    for size, width, stride, dilation in zip(
        call.x.shape[2:], kernel, settings["stride"], settings["dilation"], strict=True
    ):
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (width - 1) + 1 - size)
        small.append(total // 2)
        large.append(total - total // 2)
    return (large, small) if way == "SAME_LOWER" else (small, large)


MEANS = nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d
MAXIMA = nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d

WINDOWS: dict[str, Any] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda call: global_pool(call, *MEANS),
    "GlobalMaxPool": lambda call: global_pool(call, *MAXIMA),
    "MaxPool": _max_pool,
}
