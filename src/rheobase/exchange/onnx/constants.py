"""Operators on constants, computed while reading; mostly arithmetic on shapes."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call
from rheobase.exchange.onnx.quantisation import dequantise_constant, quantise_constant
from rheobase.exchange.onnx.reading import FLOATS, widen

Fold = Callable[[Call], Tensor]

_MOST = 2**24
"""The largest number of values that a node may create."""


def _constant(call: Call) -> Tensor:
    for name in ("value", "value_int", "value_ints", "value_float", "value_floats"):
        value = call.attribute(name)
        if value is not None:
            return value if isinstance(value, Tensor) else torch.tensor(value)
    raise Refusal("it has no number", "export the model without it")


def _shape(call: Call) -> Tensor:
    sizes = call.shapes[0]
    return torch.tensor(sizes[call.attribute("start", 0) : call.attribute("end", len(sizes))])


def _filled(call: Call) -> Tensor:
    value: Tensor = call.attribute("value", torch.zeros(1))
    shape = call.weight(0, "shape").tolist()
    if math.prod(shape) > _MOST:
        raise Refusal(f"it would create {math.prod(shape):,} values", "store weights in the file")
    return value.reshape(()).expand(shape)


def _cast(call: Call) -> Tensor:
    value, to = call.weight(0, "value"), call.attribute("to")
    if to in FLOATS:
        return widen(value.to(FLOATS[to]))
    return value.to(torch.from_numpy(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(to))).dtype)


def _gather(call: Call) -> Tensor:
    values, indices = call.weight(0, "values"), call.weight(1, "indices")
    axis = call.attribute("axis", 0)
    picked = values.index_select(axis, indices.flatten() % values.shape[axis])
    axis %= values.dim()
    return picked.reshape([*values.shape[:axis], *indices.shape, *values.shape[axis + 1 :]])


def _unsqueeze(call: Call) -> Tensor:
    value, axes = call.weight(0, "value"), _listed(call.numbers("axes", 1))
    rank = value.dim() + len(axes)
    for axis in sorted(axis % rank for axis in axes):
        value = value.unsqueeze(axis)
    return value


def _squeeze(call: Call) -> Tensor:
    axes = call.numbers("axes", 1)
    value = call.weight(0, "value")
    return value.squeeze() if axes is None else value.squeeze(tuple(_listed(axes)))


def _concat(call: Call) -> Tensor:
    return torch.cat([call.weight(i, "value") for i in range(len(call.inputs))], call.attribute("axis", 0))


def _slice(call: Call) -> Tensor:
    value = call.weight(0, "value")
    for axis, start, end, step in slices(call, value.dim()):
        places = range(value.shape[axis])[start:end:step]
        value = value.index_select(axis, torch.tensor(list(places), dtype=torch.long))
    return value


def slices(call: Call, rank: int) -> list[tuple[int, int, int, int]]:
    """The axis, start, end and step of a Slice, for each of its axes."""
    starts, ends = call.numbers("starts", 1), call.numbers("ends", 2)
    axes = call.numbers("axes", 3) or range(len(starts))
    steps = call.numbers("steps", 4) or [1] * len(starts)
    return [
        (axis % rank, start, end, step)
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True)
    ]


def _reshape(call: Call) -> Tensor:
    value, sizes = call.weight(0, "value"), call.weight(1, "shape").tolist()
    return value.reshape([value.shape[i] if size == 0 else size for i, size in enumerate(sizes)])


def _transpose(call: Call) -> Tensor:
    value = call.weight(0, "value")
    return value.permute(call.attribute("perm", list(range(value.dim()))[::-1]))


def _elementwise(function: Callable[[Tensor, Tensor], Tensor]) -> Fold:
    return lambda call: function(call.weight(0, "value"), call.weight(1, "value"))


def _divide(a: Tensor, b: Tensor) -> Tensor:
    return a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc")


def _listed(value: Any) -> list[int]:
    return value if isinstance(value, list) else [value]


FOLDS: dict[str, Fold] = {
    "Add": _elementwise(torch.add),
    "Cast": _cast,
    "Clip": lambda call: call.weight(0, "value").clamp(call.constant(1, "bound"), call.constant(2, "bound")),
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "DequantizeLinear": dequantise_constant,
    "Div": _elementwise(_divide),
    "Gather": _gather,
    "Identity": lambda call: call.weight(0, "value"),
    "Mul": _elementwise(torch.mul),
    "QuantizeLinear": quantise_constant,
    "Reshape": _reshape,
    "Shape": _shape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _elementwise(torch.sub),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
