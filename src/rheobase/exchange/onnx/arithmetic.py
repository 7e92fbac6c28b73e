"""Arithmetic of signals and constants, comparisons, and reductions."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import ANY_BATCH, Call, Signal, Value
from rheobase.exchange.onnx.windows import MAXIMA, global_pool


def _elementwise(function: Callable[..., Tensor]) -> Callable[[Call], Signal]:
    return lambda call: call.apply(function, *(_for_all_samples(call, value) for value in call.inputs))


def _for_all_samples(call: Call, value: Value) -> Value:
    """A constant with a row for each of what the batch is merged with, repeated for all samples."""
    x = max(call.signals, key=lambda signal: len(signal.shape))
    rows, behind = x.shape[x.at] // ANY_BATCH, len(x.shape) - x.at
    if not isinstance(value, Tensor) or rows == 1 or value.dim() < behind or value.shape[-behind] != rows:
        return value

    def repeat(x: Tensor, rows_of: Tensor) -> Tensor:
        samples = x.shape[-behind] // rows
        if outer > 1:
            return rows_of.repeat_interleave(samples, -behind)
        return rows_of.repeat(*[1] * (rows_of.dim() - behind), samples, *[1] * (behind - 1))

    outer = x.outer
    return call.apply(repeat, x, value)


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


def _running_sum(call: Call) -> Signal:
    axis = int(call.weight(1, "axis")) % call.rank
    call.expect_samples_apart(axis)
    if call.attribute("exclusive", 0) or call.attribute("reverse", 0):
        raise Refusal("it is exclusive or reversed", "use a plain running sum")
    return call.apply(torch.cumsum, dim=axis)


ARITHMETIC: dict[str, Any] = {
    "Add": _elementwise(operator.add),
    "And": _elementwise(torch.logical_and),
    "CumSum": _running_sum,
    "Div": _elementwise(operator.truediv),
    "Equal": _elementwise(torch.eq),
    "Greater": _elementwise(torch.gt),
    "GreaterOrEqual": _elementwise(torch.ge),
    "IsInf": lambda call: call.apply(torch.isinf),
    "IsNaN": lambda call: call.apply(torch.isnan),
    "Less": _elementwise(torch.lt),
    "LessOrEqual": _elementwise(torch.le),
    "Mean": _mean,
    "Mul": _elementwise(operator.mul),
    "Not": lambda call: call.apply(torch.logical_not),
    "Or": _elementwise(torch.logical_or),
    "Pow": _power,
    "ReduceL2": _reduction(torch.linalg.vector_norm),
    "ReduceMax": _reduction(torch.amax),
    "ReduceMean": _reduction(torch.mean),
    "ReduceMin": _reduction(torch.amin),
    "ReduceSum": _reduction(torch.sum),
    "ReduceSumSquare": _reduction(_sum_of_squares),
    "Sub": _elementwise(operator.sub),
    "Sum": _sum,
    "Where": _elementwise(torch.where),
}
