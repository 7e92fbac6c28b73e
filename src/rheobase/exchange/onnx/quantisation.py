"""QuantizeLinear and DequantizeLinear: dequantised constants, and the rounding of signals.

A signal is kept in floating point: QuantizeLinear rounds it to the values that DequantizeLinear would give,
and DequantizeLinear with the same scale has no effect.
"""

import dataclasses

import onnx
import torch
from torch import Tensor

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.network import Quantised, Smooth

_RANGES = {
    onnx.TensorProto.UINT4: (0, 15),
    onnx.TensorProto.INT4: (-8, 7),
    onnx.TensorProto.UINT8: (0, 255),
    onnx.TensorProto.INT8: (-128, 127),
    onnx.TensorProto.UINT16: (0, 2**16 - 1),
    onnx.TensorProto.INT16: (-(2**15), 2**15 - 1),
}


def quantise(call: Call) -> Signal:
    """Round a signal to multiples of its scale."""
    scale, zero = _scale(call), _zero(call)
    low, high = _range(call)
    if scale.dim() and call.attribute("axis", 1) % len(call.x.shape) != 1:
        raise Refusal("its scales are not along the channels", "use one scale, or one per channel")
    zeros = set(zero.flatten().tolist())
    if len(zeros) > 1:
        raise Refusal("its zero points differ between channels", "use one zero point, best 0")
    shift = int(zeros.pop())
    rounding = _rounding(scale, low - shift, high - shift)
    return dataclasses.replace(call.emit(rounding), grid=(scale, zero))


def _rounding(scale: Tensor, low: int, high: int) -> Quantised:
    try:
        return Quantised(Smooth("linear"), scale, low, high)
    except ValueError as error:
        raise Refusal(str(error), "calibrate the quantised network again") from None


def narrow(call: Call) -> Signal:
    """Clip integers, as files with fewer than 8 bits do between the two operators."""
    assert call.x.grid is not None
    scale, zero = call.x.grid
    low, high = (int(call.weight(i, "bound")) - int(zero.flatten()[0]) for i in (1, 2))
    return dataclasses.replace(call.emit(_rounding(scale, low, high)), grid=call.x.grid)


def dequantise(call: Call) -> Signal:
    """The end of a rounding, which `quantise` has computed already."""
    grid = call.x.grid
    if grid is None:
        raise Refusal("its input is not from QuantizeLinear", "keep both next to each other (QDQ format)")
    if not all(map(torch.equal, grid, (_scale(call), _zero(call)))):
        raise Refusal("its scale is not that of QuantizeLinear before it", "use the same scale in both")
    return dataclasses.replace(call.x, grid=None)


def quantise_constant(call: Call) -> Tensor:
    """A constant as integers."""
    value = call.weight(0, "value")
    low, high = _range(call)
    return ((value / _along(call, _scale(call))).round() + _along(call, _zero(call))).clamp(low, high)


def dequantise_constant(call: Call) -> Tensor:
    """The values that integers stand for."""
    value = call.weight(0, "value")
    return (value.double() - _along(call, _zero(call))).to(torch.float32) * _along(call, _scale(call))


def _scale(call: Call) -> Tensor:
    scale = call.weight(1, "scale").float()
    if call.attribute("block_size", 0) or scale.dim() > 1:
        raise Refusal("it has a scale for each block", "use one scale, or one per channel")
    return scale.reshape(()) if scale.numel() == 1 else scale


def _zero(call: Call) -> Tensor:
    zero = call.constant(2, "zero point")
    return torch.zeros(()) if zero is None else zero.float().reshape(() if zero.numel() == 1 else (-1,))


def _along(call: Call, values: Tensor) -> Tensor:
    """Numbers in a shape that broadcasts along the axis of a constant."""
    if not values.dim():
        return values
    sizes = [1] * call.weight(0, "value").dim()
    sizes[call.attribute("axis", 1)] = -1
    return values.reshape(sizes)


def _range(call: Call) -> tuple[int, int]:
    kind = call.attribute("output_dtype", 0) or onnx.TensorProto.UINT8
    if len(call.inputs) > 2 and call.inputs[2] is not None:
        kind = call.builder.source.types.get(call.node.input[2], 0)
    if kind not in _RANGES:
        found = onnx.TensorProto.DataType.Name(kind) if kind else "a computed type"
        raise Refusal(f"it rounds to {found}", "use integers of 4, 8 or 16 bits with a stored zero point")
    return _RANGES[kind]
