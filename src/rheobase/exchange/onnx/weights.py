"""Operators with weights, and normalisations."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.exchange.onnx.windows import layer, pad_evenly, steps


def _convolution(call: Call) -> Signal:
    weight, bias = call.weight(1, "weight"), call.constant(2, "bias")
    places = weight.dim() - 2
    kind = layer((nn.Conv1d, nn.Conv2d, nn.Conv3d), places)
    groups = call.attribute("group", 1)
    x, padding = pad_evenly(call, places, list(weight.shape[2:]))
    made = kind(
        weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), bias=bias is not None,
        device="meta", groups=groups, padding=padding, **steps(call, places),
    )  # fmt: skip
    return call.emit(_fill(made, weight, bias), x)


def _transposed_convolution(call: Call) -> Signal:
    weight, bias = call.weight(1, "weight"), call.constant(2, "bias")
    places = weight.dim() - 2
    kind = layer((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), places)
    groups, pads = call.attribute("group", 1), call.attribute("pads", [0] * 2 * places)
    fixed = call.attribute("auto_pad", "NOTSET") == "NOTSET" and call.attribute("output_shape") is None
    if not fixed or pads[:places] != pads[places:]:
        raise Refusal("its padding is uneven or not given", "use equal explicit padding on both sides")
    made = kind(
        weight.shape[0], weight.shape[1] * groups, tuple(weight.shape[2:]), bias=bias is not None,
        device="meta", groups=groups, padding=tuple(pads[:places]),
        output_padding=tuple(call.attribute("output_padding", [0] * places)), **steps(call, places),
    )  # fmt: skip
    return call.emit(_fill(made, weight, bias))


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
    matrix = call.inputs[1]
    if isinstance(matrix, Tensor) and matrix.dim() == 2:
        return _linear(call, matrix.T, None)
    return call.apply(torch.matmul, *call.inputs)


def _linear(call: Call, weight: Tensor, bias: Tensor | None) -> Signal:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return call.emit(_fill(made, weight, bias))


def _einsum(call: Call) -> Signal:
    return call.apply(lambda *factors, equation: torch.einsum(equation, *factors), *call.inputs,
                      equation=call.attribute("equation"))  # fmt: skip


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
    made = layer(kinds, call.rank - 1)(len(scale), eps=call.attribute("epsilon", 1e-5))
    made.running_mean, made.running_var = mean.clone(), variance.clone()
    return call.emit(_fill(made, scale, shift))


def _layer_norm(call: Call) -> Signal:
    if any(call.node.output[1:]):
        raise Refusal("it returns its statistics, too", "use its first result only")
    axis = call.axis(-1)
    shape = call.x.shape[axis:]
    call.expect_samples_apart(*range(axis, call.rank))
    made = nn.LayerNorm(shape, call.attribute("epsilon", 1e-5), bias=len(call.inputs) > 2, device="meta")
    weight, bias = call.weight(1, "weight"), call.constant(2, "bias")
    return call.emit(_fill(made, weight.expand(shape), None if bias is None else bias.expand(shape)))


def _rms_norm(call: Call) -> Signal:
    axis = call.axis(-1)
    shape = call.x.shape[axis:]
    call.expect_samples_apart(*range(axis, call.rank))
    made = nn.RMSNorm(shape, call.attribute("epsilon", 1e-5), device="meta")
    return call.emit(_fill(made, call.weight(1, "weight").expand(shape), None))


def _group_norm(call: Call) -> Signal:
    weight, bias = call.weight(1, "weight"), call.weight(2, "bias")
    channels = call.x.shape[1]
    groups = call.attribute("num_groups", channels)  # an instance norm has none
    per_channel = (values.repeat_interleave(channels // len(values)) for values in (weight, bias))
    made = nn.GroupNorm(groups, channels, call.attribute("epsilon", 1e-5), device="meta")
    return call.emit(_fill(made, *per_channel))


def _lp_norm(call: Call) -> Signal:
    axis = call.axis(-1)
    call.expect_samples_apart(axis)
    return call.apply(F.normalize, p=float(call.attribute("p", 2)), dim=axis)


def _fill(made: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Set the weights of a layer; it was built on the meta device, which draws no random numbers."""
    made.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format))
    if bias is not None:
        made.bias = nn.Parameter(bias.clone(memory_format=torch.contiguous_format))
    return made


WEIGHTS: dict[str, Any] = {
    "BatchNormalization": _batch_norm,
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MatMul": _matmul,
    "RMSNormalization": _rms_norm,
}
