"""The torch modules of each ONNX operator on signals.

An operator receives its call and emits layers of torch or operations of this package. It refuses what torch
would compute differently, and what would mix the samples of a batch.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.exchange.onnx.quantisation import dequantise, narrow, quantise
from rheobase.exchange.onnx.shaping import SHAPING, torch_order
from rheobase.network import Add, Mean, Pad

Operator = Callable[[Call], Any]


class Arithmetic(nn.Module):
    """A function of two operands, one of which may be a constant."""

    def __init__(self, function: Callable[[Any, Any], Tensor], *operands: Tensor | None) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("left", operands[0])
        self.register_buffer("right", operands[1])

    def forward(self, *signals: Tensor) -> Tensor:
        left = signals[0] if self.left is None else self.left
        return self.function(left, signals[-1] if self.right is None else self.right)


# Weights


def _convolution(call: Call) -> Signal:
    weight, bias = call.weight(1, "weight"), call.constant(2, "bias")
    places = weight.dim() - 2
    kind = _layer((nn.Conv1d, nn.Conv2d, nn.Conv3d), places)
    groups = call.attribute("group", 1)
    x, padding = _pad_evenly(call, places, list(weight.shape[2:]))
    layer = kind(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), bias=bias is not None,
        device="meta", groups=groups, padding=padding, **_steps(call, places),
    )  # fmt: skip
    return call.emit(_fill(layer, weight, bias), x)


def _transposed_convolution(call: Call) -> Signal:
    weight, bias = call.weight(1, "weight"), call.constant(2, "bias")
    places = weight.dim() - 2
    kind = _layer((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), places)
    groups, pads = call.attribute("group", 1), call.attribute("pads", [0] * 2 * places)
    fixed = call.attribute("auto_pad", "NOTSET") == "NOTSET" and call.attribute("output_shape") is None
    if not fixed or pads[:places] != pads[places:]:
        raise Refusal("its padding is uneven or not given", "use equal explicit padding on both sides")
    layer = kind(
        weight.shape[0], weight.shape[1] * groups, tuple(weight.shape[2:]), bias=bias is not None,
        device="meta", groups=groups, padding=tuple(pads[:places]),
        output_padding=tuple(call.attribute("output_padding", [0] * places)), **_steps(call, places),
    )  # fmt: skip
    return call.emit(_fill(layer, weight, bias))


def _gemm(call: Call) -> Signal:
    weight, bias = call.weight(1, "weight"), call.constant(2, "bias")
    if call.attribute("transA", 0):
        raise Refusal("it transposes the signal, which mixes samples", "use transA=0")
    weight = weight if call.attribute("transB", 0) else weight.T
    if bias is not None:
        if bias.dim() > 1 and bias.shape[0] != 1:
            raise Refusal("its bias differs between samples", "use one bias per output")
        bias = (bias * call.attribute("beta", 1.0)).expand(1, weight.shape[0])[0]
    return _linear(call, weight * call.attribute("alpha", 1.0), bias)


def _matmul(call: Call) -> Signal:
    if len(call.signals) > 1:
        raise Refusal(
            "it multiplies two signals as matrices",
            "convert the convolutional part alone, or replace attention",
        )
    if isinstance(call.inputs[1], Signal):
        raise Refusal(
            "its weight is on the left",
            "put it on the right, (x.transpose(1, 2) @ weight.T).transpose(1, 2), and export it again",
        )
    weight = call.weight(1, "weight")
    if weight.dim() != 2:
        raise Refusal(f"its weight has {weight.dim()} dimensions", "use a weight of two dimensions")
    return _linear(call, weight.T, None)


def _linear(call: Call, weight: Tensor, bias: Tensor | None) -> Signal:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return call.emit(_fill(layer, weight, bias))


def _batch_norm(call: Call) -> Signal:
    # Before opset 14 training mode shows only in the additional outputs.
    if call.attribute("training_mode", 0) or any(call.node.output[1:]):
        raise Refusal("it is in training mode", "export the model in evaluation mode")
    scale, shift, mean, variance = (call.weight(i, "statistics") for i in range(1, 5))
    if any(values.shape != call.x.shape[1:2] for values in (scale, shift, mean, variance)):
        raise Refusal("its statistics are not one per channel", "export with opset 9 or later")
    if bool((variance < 0).any()):
        raise Refusal("a variance is negative", "train the network again or use another file")
    kinds = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    layer = _layer(kinds, len(call.x.shape) - 1)(len(scale), eps=call.attribute("epsilon", 1e-5))
    layer.running_mean, layer.running_var = mean.clone(), variance.clone()
    return call.emit(_fill(layer, scale, shift))


def _fill(layer: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Set the weights of a layer; it was built on the meta device, which draws no random numbers."""
    layer.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    if bias is not None:
        layer.bias = nn.Parameter(bias.clone(memory_format=torch.contiguous_format))
    return layer


# Activations


def _clip(call: Call) -> Signal:
    if call.x.grid is not None:
        return narrow(call)
    bounds = call.numbers("min", 1), call.numbers("max", 2)
    # Scalars by the standard; some exporters write lists with one number.
    low, high = (bound[0] if isinstance(bound, list) and len(bound) == 1 else bound for bound in bounds)
    if low != 0 or (high is not None and not high > 0):
        raise Refusal(
            f"a clip to [{'-inf' if low is None else low}, {'inf' if high is None else high}] is not a ReLU",
            "use Clip(0) or Clip(0, c) with c > 0, which spiking neurons can approximate",
        )
    unbounded = high is None or high >= torch.finfo(torch.float32).max
    return call.emit(nn.ReLU() if unbounded else nn.Hardtanh(0.0, high))


def _maximum(call: Call) -> Signal:
    """Max(x, 0), which exporters write for a clamp without an upper bound."""
    bound = call.constant(1, "bound")
    if len(call.inputs) != 2 or bound is None or bound.shape not in ((), (1,)) or bound != 0:
        raise Refusal("it is not the maximum of a signal and zero", "use ReLU, or Max(x, 0)")
    return call.emit(nn.ReLU())


def _with_alpha(kind: Any, usual: float) -> Operator:
    return lambda call: call.emit(kind(call.attribute("alpha", usual)))


def _gelu(call: Call) -> Signal:
    return call.emit(nn.GELU(call.attribute("approximate", "none")))


def _hard_sigmoid(call: Call) -> Signal:
    slope, middle = call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    if abs(slope - 1 / 6) > 1e-6 or middle != 0.5:
        raise Refusal(f"it has alpha = {slope:g} and beta = {middle:g}", "use alpha = 1/6 and beta = 0.5")
    return call.emit(nn.Hardsigmoid())


def _prelu(call: Call) -> Signal:
    slopes, (_, channels, *places) = call.weight(1, "slope"), call.x.shape
    if slopes.numel() != 1 and tuple(slopes.shape[-1 - len(places) :]) != (channels, *[1] * len(places)):
        raise Refusal(f"its slopes have the shape {tuple(slopes.shape)}", "use one slope, or one per channel")
    layer = nn.PReLU(slopes.numel())
    layer.weight = nn.Parameter(slopes.flatten().clone())
    return call.emit(layer)


def _softmax(kind: Any) -> Operator:
    def emit(call: Call) -> Signal:
        rank = len(call.x.shape)
        axis = call.attribute("axis", -1 if call.opset >= 13 else 1) % rank
        if call.opset < 13 and axis != rank - 1:
            raise Refusal("before opset 13 it spans several dimensions", "export with opset 13 or later")
        return call.emit(kind(axis))

    return emit


# Pooling


def _average_pool(call: Call) -> Signal:
    kernel = call.attribute("kernel_shape")
    if set(call.attribute("dilations", [1])) != {1}:
        raise Refusal("it is dilated", "use average pooling without dilation")
    counted = bool(call.attribute("count_include_pad", 0))
    rounded_up = bool(call.attribute("ceil_mode", 0))
    # With rounding up no window may start in the padding, as one could in zeros around the signal.
    x, padding = _pad_evenly(call, len(kernel), kernel, zeros=counted and not rounded_up)
    kind = _layer((nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d), len(kernel))
    stride = tuple(call.attribute("strides", [1] * len(kernel)))
    layer = kind(tuple(kernel), stride, padding, rounded_up, counted)
    return call.emit(layer, x)


def _max_pool(call: Call) -> Signal:
    kernel = call.attribute("kernel_shape")
    if len(call.node.output) > 1 and call.node.output[1]:
        raise Refusal("it returns indices, too", "use max-pooling without indices")
    if call.attribute("auto_pad", "NOTSET").startswith("SAME") and set(_steps(call, 1)["dilation"]) != {1}:
        raise Refusal("readers disagree on automatic padding of dilated max-pooling", "use explicit pads")
    x, padding = _pad_evenly(call, len(kernel), kernel, zeros=False)
    kind = _layer((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), len(kernel))
    steps = {"stride": (1,) * len(kernel)} | _steps(call, len(kernel))
    return call.emit(
        kind(tuple(kernel), padding=padding, ceil_mode=bool(call.attribute("ceil_mode", 0)), **steps), x
    )


def _global_pool(*kinds: Any) -> Operator:
    return lambda call: call.emit(_layer(kinds, len(call.x.shape) - 2)(1))


def _largest(call: Call) -> Signal:
    """ReduceMax over all positions, which exporters write for global max-pooling."""
    rank = len(call.x.shape)
    if sorted(axis % rank for axis in call.numbers("axes", 1) or ()) != list(range(2, rank)):
        raise Refusal("it is not the maximum over all positions", "use max-pooling")
    kinds = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
    pooled = call.emit(_layer(kinds, rank - 2)(1))
    return pooled if call.attribute("keepdims", 1) else call.emit(nn.Flatten(), pooled)


def _mean(call: Call) -> Signal:
    rank, axes = len(call.x.shape), call.numbers("axes", 1)
    if not axes and call.attribute("noop_with_empty_axes", 0):
        return call.x
    dims = sorted(axis % rank for axis in axes or range(rank))
    if 0 in dims:
        raise Refusal("a mean over the batch mixes samples", "take the mean over later dimensions")
    return call.emit(Mean(dims, bool(call.attribute("keepdims", 1))))


# Arithmetic


def _sum(call: Call) -> Signal:
    if len(call.signals) != len(call.inputs):
        raise Refusal("it adds a constant", "use Add for constants")
    total, *others = call.signals
    for signal in others:
        total = call.emit(Add(), total, signal)
    return total


def _arithmetic(function: Callable[[Any, Any], Tensor]) -> Operator:
    def emit(call: Call) -> Signal:
        operands = [value if isinstance(value, Tensor) else None for value in call.inputs]
        if function is operator.add and len(call.signals) == 2:
            return call.emit(Add(), *call.signals)
        return call.emit(Arithmetic(function, *operands), *call.signals)

    return emit


# Shared by convolution and pooling


def _layer(kinds: Sequence[Any], places: int) -> Any:
    if not 1 <= places <= len(kinds):
        raise Refusal(f"it has {places} spatial dimensions", "use one to three")
    return kinds[places - 1]


def _steps(call: Call, places: int) -> dict[str, tuple[int, ...]]:
    names = {"stride": "strides", "dilation": "dilations"}
    return {ours: tuple(call.attribute(theirs, [1] * places)) for ours, theirs in names.items()}


def _pad_evenly(
    call: Call, places: int, kernel: list[int], zeros: bool = True
) -> tuple[Signal, tuple[int, ...]]:
    """The signal and its padding, equal on both sides; uneven zeros become a `Pad` of the signal."""
    before, after = _pads(call, places, kernel)
    if before == after:
        return call.x, tuple(before)
    if not zeros:
        raise Refusal("its padding is uneven", "pad equally on both sides")
    return call.emit(Pad(torch_order(before, after))), (0,) * places


def _pads(call: Call, places: int, kernel: list[int]) -> tuple[list[int], list[int]]:
    way = call.attribute("auto_pad", "NOTSET")
    if way == "NOTSET":
        pads = call.attribute("pads", [0] * 2 * places)
        return pads[:places], pads[places:]
    if way == "VALID":
        return [0] * places, [0] * places
    steps = _steps(call, places)
    small, large = [], []
    for size, width, stride, dilation in zip(
        call.x.shape[2:], kernel, steps["stride"], steps["dilation"], strict=True
    ):
        total = max(0, (-(-size // stride) - 1) * stride + dilation * (width - 1) + 1 - size)
        small.append(total // 2)
        large.append(total - total // 2)
    return (large, small) if way == "SAME_LOWER" else (small, large)


OPERATORS: dict[str, Operator] = {
    **SHAPING,
    "Add": _arithmetic(operator.add),
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "DequantizeLinear": dequantise,
    "Div": _arithmetic(operator.truediv),
    "Elu": _with_alpha(nn.ELU, 1.0),
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    "GlobalMaxPool": _global_pool(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda call: call.emit(nn.Hardswish()),
    "LeakyRelu": _with_alpha(nn.LeakyReLU, 0.01),
    "LogSoftmax": _softmax(nn.LogSoftmax),
    "MatMul": _matmul,
    "Max": _maximum,
    "MaxPool": _max_pool,
    "Mul": _arithmetic(operator.mul),
    "PRelu": _prelu,
    "QuantizeLinear": quantise,
    "ReduceMax": _largest,
    "ReduceMean": _mean,
    "Relu": lambda call: call.emit(nn.ReLU()),
    "Sigmoid": lambda call: call.emit(nn.Sigmoid()),
    "Softmax": _softmax(nn.Softmax),
    "Sub": _arithmetic(operator.sub),
    "Sum": _sum,
    "Tanh": lambda call: call.emit(nn.Tanh()),
}
