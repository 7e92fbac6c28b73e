"""Arithmetic of signals and constants, comparisons, and reductions."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.exchange.onnx.windows import MAXIMA, global_pool


def _binary(function: Callable[[Any, Any], Tensor]) -> Callable[[Call], Signal]:
    return lambda call: call.apply(function, *call.inputs)


def _power(call: Call) -> Signal:
    exponent = call.inputs[1]
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        return call.apply(torch.pow, exponent=exponent.item())
    return call.apply(torch.pow, *call.inputs)


def _sum(call: Call) -> Signal:
    return call.apply(lambda *values: reduce(operator.add, values), *call.inputs)


def _mean(call: Call) -> Signal:
    return call.apply(lambda *values: reduce(operator.add, values) / len(values), *call.inputs)


def _reduction(function: Callable[..., Tensor]) -> Callable[[Call], Signal]:
    def emit(call: Call) -> Signal:
        axes = call.numbers("axes", 1)
        if not axes and call.attribute("noop_with_empty_axes", 0):
            return call.x
        dims = sorted(axis % call.rank for axis in axes or range(call.rank))
        call.expect_samples_apart(*dims)
        keep = bool(call.attribute("keepdims", 1))
        if function is torch.amax and dims == list(range(2, call.rank)):  # a global max-pooling
            pooled = global_pool(call, *MAXIMA)
            return pooled if keep else call.emit(nn.Flatten(), pooled)
        return call.apply(function, dim=dims, keepdim=keep)

    return emit


def _sum_of_squares(x: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    return x.square().sum(dim, keepdim)


ARITHMETIC: dict[str, Any] = {
    "Add": _binary(operator.add),
    "And": _binary(torch.logical_and),
    "Div": _binary(operator.truediv),
    "Equal": _binary(torch.eq),
    "Greater": _binary(torch.gt),
    "GreaterOrEqual": _binary(torch.ge),
    "Less": _binary(torch.lt),
    "LessOrEqual": _binary(torch.le),
    "Mean": _mean,
    "Mul": _binary(operator.mul),
    "Not": lambda call: call.apply(torch.logical_not),
    "Or": _binary(torch.logical_or),
    "Pow": _power,
    "ReduceL2": _reduction(torch.linalg.vector_norm),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMin": _reduction(torch.amin),
    "ReduceSum": _reduction(torch.sum),
    "ReduceSumSquare": _reduction(_sum_of_squares),
    "Sub": _binary(operator.sub),
    "Sum": _sum,
    "Where": lambda call: call.apply(torch.where, *call.inputs),
}
