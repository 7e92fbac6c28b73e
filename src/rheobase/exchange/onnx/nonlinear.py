"""Operators that act on each value, and softmax."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.exchange.onnx.quantisation import narrow


def _clip(call: Call) -> Signal:
    if call.x.grid is not None:
        return narrow(call)
    bounds = call.numbers("min", 1), call.numbers("max", 2)
    # Scalars by the standard; some exporters write lists with one number.
    low, high = (bound[0] if isinstance(bound, list) and len(bound) == 1 else bound for bound in bounds)
    largest = torch.finfo(torch.float32).max
    low, high = (None if bound is None or abs(bound) >= largest else bound for bound in (low, high))
    if low == 0 and (high is None or high > 0):
        return call.emit(nn.ReLU() if high is None else nn.Hardtanh(0.0, high))
    if high is None:
        return call.x if low is None else call.apply(torch.clamp_min, min=low)
    return call.apply(torch.clamp, min=low, max=high)


def _extreme(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Call], Signal]:
    """The largest or the smallest of several values, one by one."""

    def emit(call: Call) -> Signal:
        first, *others = sorted(call.inputs, key=lambda value: isinstance(value, Tensor))
        for value in others:
            zero = isinstance(value, Tensor) and value.numel() == 1 and not value.any()
            if zero and function is torch.maximum:  # as exporters write a clamp without an upper bound
                assert isinstance(first, Signal)
                first = call.emit(nn.ReLU(), first)
            else:
                first = call.apply(function, first, value)
        assert isinstance(first, Signal)
        return first

    return emit


def _with_alpha(kind: Any, usual: float) -> Callable[[Call], Signal]:
    return lambda call: call.emit(kind(call.attribute("alpha", usual)))


def _hard_sigmoid(call: Call) -> Signal:
    slope, middle = call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    if abs(slope - 1 / 6) < 1e-6 and middle == 0.5:
        return call.emit(nn.Hardsigmoid())
    return call.emit(nn.Hardtanh(0.0, 1.0), call.apply(lambda x: x * slope + middle))


def _prelu(call: Call) -> Signal:
    slopes, (_, channels, *places) = call.weight(1, "slope"), call.x.shape
    if slopes.numel() != 1 and tuple(slopes.shape[-1 - len(places) :]) != (channels, *[1] * len(places)):
        raise Refusal(f"its slopes have the shape {tuple(slopes.shape)}", "use one slope, or one per channel")
    made = nn.PReLU(slopes.numel())
    made.weight = nn.Parameter(slopes.flatten().clone())
    return call.emit(made)


def _softmax(kind: Any) -> Callable[[Call], Signal]:
    def emit(call: Call) -> Signal:
        axis = call.axis(-1 if call.opset >= 13 else 1)
        if call.opset < 13 and axis != call.rank - 1:
            raise Refusal("before opset 13 it spans several dimensions", "export with opset 13 or later")
        return call.emit(kind(axis))

    return emit


def _plain(function: Callable[[Tensor], Tensor]) -> Callable[[Call], Signal]:
    return lambda call: call.apply(function)


def _layer(kind: Any) -> Callable[[Call], Signal]:
    return lambda call: call.emit(kind())


NONLINEAR: dict[str, Any] = {
    **{name: _plain(getattr(torch, name.lower())) for name in ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor")},
    **{name: _plain(getattr(torch, name.lower())) for name in ("Log", "Reciprocal", "Round", "Sign", "Sin")},
    "Celu": _with_alpha(nn.CELU, 1.0),
    "Clip": _clip,
    "Elu": _with_alpha(nn.ELU, 1.0),
    "Gelu": lambda call: call.emit(nn.GELU(call.attribute("approximate", "none"))),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _layer(nn.Hardswish),
    "LeakyRelu": _with_alpha(nn.LeakyReLU, 0.01),
    "LogSoftmax": _softmax(nn.LogSoftmax),
    "Max": _extreme(torch.maximum),
    "Min": _extreme(torch.minimum),
    "Mish": _layer(nn.Mish),
    "Neg": _plain(torch.neg),
    "PRelu": _prelu,
    "Relu": _layer(nn.ReLU),
    "Selu": _layer(nn.SELU),
    "Sigmoid": _layer(nn.Sigmoid),
    "Softmax": _softmax(nn.Softmax),
    "Softplus": _layer(nn.Softplus),
    "Softsign": _plain(F.softsign),
    "Sqrt": _plain(torch.sqrt),
    "Tanh": _layer(nn.Tanh),
}
