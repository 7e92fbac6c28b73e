"""Operators on constants, computed while reading: mostly arithmetic on shapes."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor

from rheobase.conversion import Refusal, refuse_unknown
from rheobase.exchange.onnx.calls import ANY_BATCH, Call
from rheobase.exchange.onnx.quantisation import dequantise_constant, quantise_constant
from rheobase.exchange.onnx.reading import FLOATS, widen

_MOST = 2**24
"""The largest number of values that a node may create."""

_NEVER = ("If", "Loop", "Scan", "Bernoulli", "Multinomial", "Random")
"""Operators that run other nodes or draw random numbers."""

_SIZES = {"ConstantOfShape": 0, "Expand": 1, "Range": 1, "Reshape": 1, "Tile": 1}
"""Operators that create values of a given shape or number: which input it is."""


def fold(call: Call) -> Tensor | tuple[Tensor, ...]:
    """The result of a node that reads constants, or of shapes."""
    kind = call.node.op_type
    if kind in ("Shape", "Size"):
        value = call.inputs[0]
        sizes = list(value.shape) if isinstance(value, Tensor) else call.sizes
        if call.node.input[0] in call.builder.source.per_sample:
            sizes[0] = call.builder.batch
        if kind == "Size":
            return torch.tensor(math.prod(sizes))
        return torch.tensor(sizes[call.attribute("start", 0) : call.attribute("end", len(sizes))])
    if kind in _OWN:
        return _OWN[kind](call)
    if call.node.domain not in ("", "ai.onnx") or kind.startswith(_NEVER):
        raise refuse_unknown(kind)
    if kind in _SIZES:
        inputs = list(call.inputs)
        inputs[_SIZES[kind]] = _one_sample(call.weight(_SIZES[kind], "shape"))
        call = dataclasses.replace(call, inputs=inputs)
    _expect_small(call)
    return _run(call)


def _one_sample(sizes: Tensor) -> Tensor:
    """Sizes for one sample, which broadcasts over the batch."""
    return torch.where(sizes % ANY_BATCH == 0, sizes // ANY_BATCH, sizes)


def _expect_small(call: Call) -> None:
    values = [value.numel() for value in call.inputs if isinstance(value, Tensor)]
    created = 0
    match call.node.op_type:
        case "ConstantOfShape" | "Expand":
            created = math.prod(call.numbers("", _SIZES[call.node.op_type]))
        case "Tile" | "OneHot":
            created = values[0] * abs(math.prod(int(n) for n in call.weight(1, "number").flatten()))
        case "Range":
            start, stop, step = (float(call.weight(i, "bound")) for i in range(3))
            created = int((stop - start) / step) if step else 0
        case "Pad":
            sizes, pads = list(call.weight(0, "value").shape), call.numbers("pads", 1)
            for i, axis in enumerate(call.numbers("axes", 3) or range(len(sizes))):
                sizes[axis] += pads[i] + pads[i + len(pads) // 2]
            created = math.prod(sizes)
        case "Resize":
            sizes, scales = call.numbers("sizes", 3), call.numbers("scales", 2)
            created = math.prod(sizes) if sizes else int(values[0] * math.prod(scales))
        case "Upsample" | "EyeLike":
            raise refuse_unknown(call.node.op_type)
    if created > max(_MOST, *values):
        raise Refusal(f"it would create {created:,} values", "store weights in the file")


def _run(call: Call) -> Tensor | tuple[Tensor, ...]:
    names = [name for name in dict.fromkeys(call.node.input) if name]
    named = [onnx.ValueInfoProto(name=name) for name in names]
    results = [onnx.ValueInfoProto(name=name) for name in call.node.output if name]
    graph = onnx.helper.make_graph([call.node], "constant", named, results)
    values = dict(zip(call.node.input, call.inputs, strict=True))
    given = {name: values[name].numpy() for name in names}
    session = ReferenceEvaluator(graph, opsets={"": call.opset})
    found = tuple(_to_tensor(np.asarray(result)) for result in session.run(None, given))
    return found[0] if len(found) == 1 else found


def _to_tensor(array: np.ndarray) -> Tensor:
    known = array if array.dtype.kind in "iufb" else array.astype(np.float32)
    return widen(torch.from_numpy(np.array(known)))


def _constant(call: Call) -> Tensor:
    for name in ("value", "value_int", "value_ints", "value_float", "value_floats"):
        value = call.attribute(name)
        if value is not None:
            return value if isinstance(value, Tensor) else torch.tensor(value)
    raise Refusal("it has no number", "export the model without it")


def _cast(call: Call) -> Tensor:
    value, to = call.weight(0, "value"), call.attribute("to")
    if to in FLOATS:
        return widen(value.to(FLOATS[to]))
    return value.to(torch.from_numpy(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(to))).dtype)


_OWN: dict[str, Callable[[Call], Tensor]] = {
    "Cast": _cast,
    "Constant": _constant,
    "DequantizeLinear": dequantise_constant,
    "QuantizeLinear": quantise_constant,
}
"""Operators whose results keep to the types of this package: single precision for integers and halves."""
