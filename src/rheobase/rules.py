"""The rules of lowering: what each kind of torch call becomes.

A rule is registered under the names of the calls it is for: functions, methods and module classes alike. It
receives the call and its arguments, and emits operations or refuses.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from rheobase.activations import Activation, Rectifier, Smooth
from rheobase.lowering import Call, NeedsExample, Refusal, Rule
from rheobase.operations import (
    POOLING,
    RESIZING,
    SYNAPTIC,
    Add,
    Concat,
    MaxPool,
    Mean,
    Pad,
    Permute,
    Product,
    Reshape,
    Scale,
    Slice,
)

RULES: dict[str, Rule] = {}
RuleType = TypeVar("RuleType", bound=Rule)


def rule(*names: str) -> Callable[[RuleType], RuleType]:
    """Register a rule for calls of these names: functions, methods and module classes alike."""

    def register(function: RuleType) -> RuleType:
        for name in names:
            RULES[name] = function
        return function

    return register


# Sites


@rule("ReLU")
def _relu_module(call: Call, x: fx.Node, module: nn.ReLU) -> fx.Node:
    return call.site(x, Rectifier(), None, module.inplace)


@rule("ReLU6", "Hardtanh")
def _hardtanh_module(call: Call, x: fx.Node, module: nn.Hardtanh) -> fx.Node:
    return _hardtanh(call, x, module.min_val, module.max_val, module.inplace)


@rule("Threshold")
def _threshold_module(call: Call, x: fx.Node, module: nn.Threshold) -> fx.Node:
    return _threshold(call, x, module.threshold, module.value, module.inplace)


@rule("Activation")
def _activation_module(call: Call, x: fx.Node, module: Activation) -> fx.Node:
    return call.site(x, copy.deepcopy(module), module.bound, False)


@rule("relu", "relu_")
def _relu(call: Call, x: fx.Node, inplace: bool = False) -> fx.Node:
    return call.site(x, Rectifier(), None, inplace or call.in_place)


@rule("relu6")
def _relu6(call: Call, x: fx.Node, inplace: bool = False) -> fx.Node:
    return call.site(x, Rectifier(6.0), 6.0, inplace)


@rule("hardtanh", "hardtanh_")
def _hardtanh(
    call: Call, x: fx.Node, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> fx.Node:
    return _clamp(call, x, min_val, max_val, inplace)


@rule("threshold", "threshold_")
def _threshold(call: Call, x: fx.Node, threshold: float, value: float, inplace: bool = False) -> fx.Node:
    if threshold != 0 or value != 0:
        raise Refusal(
            f"a threshold at {threshold} with value {value} is not a ReLU", "use nn.ReLU and train again"
        )
    return call.site(x, Rectifier(), None, inplace or call.in_place)


@rule("clamp", "clip", "clamp_", "clip_", "clamp_min", "clamp_min_")
def _clamp(call: Call, x: fx.Node, min: Any = None, max: Any = None, inplace: bool = False) -> fx.Node:
    low, high = _number(min), _number(max)
    if low != 0 or (high is not None and high <= 0):
        raise Refusal(
            f"a clamp to [{'-inf' if low is None else low}, {'inf' if high is None else high}] is not a ReLU",
            "a spiking neuron stands for clamp(min=0) or clamp(min=0, max=c) with c > 0",
        )
    return call.site(x, Rectifier(high), high, inplace or call.in_place)


def _smooth(name: str) -> dict[str, Rule]:
    """The rules that make a site of a nonlinearity other than ReLU."""

    def lower(call: Call, x: fx.Node, module: nn.Module | None = None, inplace: bool = False) -> fx.Node:
        inplace = inplace or call.in_place or getattr(module, "inplace", False)
        return call.site(x, Smooth(name), Smooth(name).bound, inplace)

    module_name = {"silu": "SiLU"}.get(name, name.capitalize())
    return {name: lower, f"{name}_": lower, module_name: lower}


def _lower_gelu(call: Call, x: fx.Node, module: nn.GELU | None = None, approximate: str = "none") -> fx.Node:
    approximate = approximate if module is None else module.approximate
    return call.site(x, Smooth("gelu-tanh" if approximate == "tanh" else "gelu"), None, False)


SMOOTH: dict[str, dict[str, Rule]] = {
    "silu": _smooth("silu"),
    "sigmoid": _smooth("sigmoid"),
    "gelu": {"gelu": _lower_gelu, "GELU": _lower_gelu},
}
"""Nonlinearities that become sites only where a method has a neuron for them."""


def rules_with(handles: Sequence[str]) -> dict[str, Rule]:
    """All rules, and those of the named nonlinearities."""
    return RULES | {name: rule for handled in handles for name, rule in SMOOTH[handled].items()}


# Weights


def _weighted(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    return call.emit(copy.deepcopy(module), x, becomes="weights")


for _type in SYNAPTIC:
    RULES[_type.__name__] = _weighted


@rule("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm")
def _batch_norm(call: Call, x: fx.Node, module: nn.BatchNorm2d) -> fx.Node:
    if module.running_mean is None or module.running_var is None:
        raise Refusal(
            "this BatchNorm keeps no running statistics, so it has no fixed scale",
            "train with track_running_stats=True",
        )
    scale = torch.rsqrt(module.running_var.double() + module.eps)
    if module.weight is not None:
        scale = scale * module.weight.double()
    shift = -module.running_mean.double() * scale
    if module.bias is not None:
        shift = shift + module.bias.double()
    return call.emit(Scale(scale.detach(), shift.detach()), x, becomes="scale and shift")


# Pooling


@rule("MaxPool1d", "MaxPool2d", "MaxPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d", "AdaptiveMaxPool3d")
def _max_pool_module(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    if getattr(module, "return_indices", False):
        raise Refusal("max-pooling that returns indices has no spiking form", "set return_indices=False")
    call.lowering.max_pools[call.node] = module
    return call.emit(MaxPool(copy.deepcopy(module)), x, becomes="accumulated maximum")


def _max_pool(module_type: Any) -> Rule:
    def lower(
        call: Call,
        x: fx.Node,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> fx.Node:
        stride = stride or None  # an empty tuple means the same as None
        return _max_pool_module(
            call, x, module_type(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        )

    return lower


def _adaptive_max_pool(module_type: Any) -> Rule:
    def lower(call: Call, x: fx.Node, output_size: Any, return_indices: bool = False) -> fx.Node:
        return _max_pool_module(call, x, module_type(output_size, return_indices))

    return lower


def _average_pool(module_type: Any) -> Rule:
    def lower(call: Call, x: fx.Node, *args: Any, **kwargs: Any) -> fx.Node:
        return call.emit(module_type(*args, **kwargs), x, becomes="average")

    return lower


for _d in (1, 2, 3):
    RULES[f"max_pool{_d}d"] = _max_pool(getattr(nn, f"MaxPool{_d}d"))
    RULES[f"adaptive_max_pool{_d}d"] = _adaptive_max_pool(getattr(nn, f"AdaptiveMaxPool{_d}d"))
    RULES[f"avg_pool{_d}d"] = _average_pool(getattr(nn, f"AvgPool{_d}d"))
    RULES[f"adaptive_avg_pool{_d}d"] = _average_pool(getattr(nn, f"AdaptiveAvgPool{_d}d"))


def _kept(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    return call.emit(copy.deepcopy(module), x, becomes="average" if isinstance(module, POOLING) else "resize")


for _type in (*POOLING, *RESIZING):
    RULES[_type.__name__] = _kept


@rule("interpolate")
def _interpolate(
    call: Call,
    x: fx.Node,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    **_: Any,
) -> fx.Node:
    return call.emit(nn.Upsample(size, scale_factor, mode, align_corners), x, becomes="resize")


# Sums, products, constants


@rule("add", "add_", "iadd", "__add__", "__radd__")
def _add(call: Call, x: Any, other: Any, alpha: float = 1) -> fx.Node:
    if not isinstance(x, fx.Node):
        x, other = other, x
    if isinstance(other, fx.Node):
        if alpha != 1:
            other = call.emit(Scale(torch.tensor(float(alpha))), other)
        result = call.emit(Add(), x, other, becomes="sum")
    else:
        result = call.emit(Scale(*_per_channel(call, x, 1.0, _constant(other) * alpha)), x, becomes="shift")
    call.overwrite(call.in_place, result)
    return result


@rule("sub", "sub_", "isub", "rsub", "subtract")
def _sub(call: Call, x: Any, other: Any, alpha: float = 1) -> fx.Node:
    if isinstance(x, fx.Node):
        return _add(call, x, other, -alpha)
    return call.emit(Scale(*_per_channel(call, other, -1.0, x)), other, becomes="scale and shift")


@rule("mul", "mul_", "imul", "multiply", "__mul__", "__rmul__")
def _mul(call: Call, x: Any, other: Any) -> fx.Node:
    if not isinstance(x, fx.Node):
        x, other = other, x
    if isinstance(other, fx.Node):
        result = call.emit(Product(), x, other, becomes="accumulated product")
    else:
        result = call.emit(Scale(*_per_channel(call, x, other, 0.0)), x, becomes="scale")
    call.overwrite(call.in_place, result)
    return result


@rule("div", "div_", "truediv", "itruediv", "divide")
def _div(call: Call, x: Any, other: Any) -> fx.Node:
    if not isinstance(x, fx.Node) or isinstance(other, fx.Node):
        raise Refusal("division by a signal has no spiking form", "divide by a constant, or move it outside")
    return _mul(call, x, 1 / _constant(other))


@rule("neg")
def _neg(call: Call, x: fx.Node) -> fx.Node:
    return _mul(call, x, -1.0)


@rule("cat", "concat", "concatenate")
def _cat(call: Call, x: Sequence[fx.Node], dim: int = 0, axis: int | None = None) -> fx.Node:
    dim = dim if axis is None else axis
    dim = dim if dim >= 0 else dim + len(call.shape)
    if dim == 0:
        raise Refusal("concatenation along the batch mixes samples", "concatenate along a later dimension")
    return call.emit(Concat(dim), *x, becomes="concat")


# Shapes


@rule("flatten", "Flatten")
def _flatten(
    call: Call, x: fx.Node, start_dim: int = 0, end_dim: int = -1, module: nn.Flatten | None = None
) -> fx.Node:
    if module is not None:
        start_dim, end_dim = module.start_dim, module.end_dim
    if start_dim == 1 and end_dim == -1:
        return call.emit(Reshape((-1,)), x, becomes="reshape")
    return _reshape(call, x)


@rule("reshape", "view", "squeeze", "unsqueeze", "Unflatten", "unflatten")
def _reshape(call: Call, x: fx.Node, *sizes: Any, module: nn.Module | None = None, **_: Any) -> fx.Node:
    if call.lowering.shapes_known:
        if call.shape[0] != call.shape_of(x)[0]:
            raise Refusal(
                f"the reshape from {tuple(call.shape_of(x))} to {tuple(call.shape)} mixes samples",
                "keep dimension 0, the batch, as it is",
            )
        return call.emit(Reshape(call.shape[1:]), x, becomes="reshape")
    shape = sizes[0] if sizes and isinstance(sizes[0], (tuple, list, torch.Size)) else sizes
    named = call.row.call in ("x.view()", "x.reshape()", "reshape()")
    rest = [s for s in shape[1:] if isinstance(s, int)]
    if not named or len(rest) != len(shape) - 1 or (shape[0] == -1 and -1 in rest):
        raise NeedsExample(f"the shape of {call.row.call} cannot be told from the call alone")
    return call.emit(Reshape(rest), x, becomes="reshape")


@rule("size", "getattr")
def _size(call: Call, x: fx.Node, *which: Any) -> Any:
    if call.row.call == "getattr()" and which != ("shape",):
        raise NeedsExample(f"the attribute {which[0]} is not known")
    return None  # without an example only "the batch size, whatever it is" can be meant


@rule("getitem")
def _getitem(call: Call, x: Any, index: Any) -> Any:
    if x is None:
        return None
    if isinstance(x, tuple):
        call.row.becomes = "slice"
        return x[index]
    if not isinstance(index, tuple) and not call.lowering.shapes_known:
        raise NeedsExample("what is indexed is not known")
    if not isinstance(index, tuple) or index[:1] != (slice(None),):
        raise Refusal(f"indexing by {index} may mix samples", "index dimensions after the batch, with slices")
    extents = call.shape_of(x)
    for dim, part in enumerate(index):
        if isinstance(part, slice) and part == slice(None):
            continue
        if isinstance(part, int):
            part = slice(part % extents[dim], part % extents[dim] + 1)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise Refusal(
                f"indexing by {part} has no spiking form here", "use numbers, or slices with step 1"
            )
        start, stop, _ = part.indices(extents[dim])
        x = call.emit(Slice(dim, start, stop - start), x, becomes="slice")
    return call.emit(Reshape(call.shape[1:]), x) if any(isinstance(part, int) for part in index) else x


@rule("chunk", "split")
def _chunk(call: Call, x: fx.Node, sizes: Any, dim: int = 0) -> tuple[fx.Node, ...]:
    shapes = call.node.meta.get("tensors")
    if not shapes:
        raise NeedsExample("the parts' sizes are not known")
    dim = dim if dim >= 0 else dim + len(shapes[0])
    if dim == 0:
        raise Refusal("splitting the batch mixes samples", "split along a later dimension")
    parts, start = [], 0
    for shape in shapes:
        part = call.emit(Slice(dim, start, shape[dim]), x, becomes="slices")
        part.meta["shape"] = shape
        parts.append(part)
        start += shape[dim]
    return tuple(parts)


@rule("permute", "transpose", "movedim")
def _permute(call: Call, x: fx.Node, *dims: Any) -> fx.Node:
    count = len(call.shape)
    if call.node.target in ("transpose", torch.transpose):
        order = list(range(count))
        order[dims[0]], order[dims[1]] = order[dims[1]], order[dims[0]]
    else:
        order = [d % count for d in (dims[0] if isinstance(dims[0], (tuple, list)) else dims)]
    if order[0] != 0:
        raise Refusal("a permutation that moves the batch has no spiking form here", "keep dimension 0 first")
    return call.emit(Permute(order), x, becomes="permute")


@rule("mean")
def _mean(call: Call, x: fx.Node, dim: Any = None, keepdim: bool = False, axis: Any = None) -> fx.Node:
    dim = dim if axis is None else axis
    dims = [dim] if isinstance(dim, int) else list(dim or [0])
    if any(d < 0 for d in dims):
        dims = [d % len(call.shape_of(x)) for d in dims]
    if 0 in dims:
        raise Refusal(
            "a mean over the batch mixes samples", "take the mean over later dimensions, as mean([2, 3])"
        )
    return call.emit(Mean(dims, keepdim), x, becomes="mean")


@rule("pad")
def _pad(
    call: Call, x: fx.Node, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> fx.Node:
    if mode != "constant" or (value or 0) != 0:
        raise Refusal(f"padding with {mode} {value} is not zero-padding", "pad with zeros")
    return call.emit(Pad(pad), x, becomes="zeros around")


@rule("ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d")
def _pad_module(call: Call, x: fx.Node, module: nn.ConstantPad2d) -> fx.Node:
    return _pad(call, x, module.padding, "constant", module.value)


# What does nothing in a converted network


@rule("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout")
def _dropout_module(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    return call.drop(x, "removed: for training only")


@rule("dropout", "dropout1d", "dropout2d", "dropout3d")
def _dropout(call: Call, x: fx.Node, p: float = 0.5, training: bool = True, inplace: bool = False) -> fx.Node:
    module_type = {"dropout": nn.Dropout}.get(call.node.target.__name__, nn.Dropout2d)  # type: ignore[union-attr]
    call.lowering.dropouts[call.node] = module_type(p)
    return call.drop(x, "removed: for training only")


@rule("StochasticDepth", "stochastic_depth")
def _stochastic_depth(call: Call, x: fx.Node, *_: Any, **__: Any) -> fx.Node:
    return call.drop(x, "removed: for training only")


@rule("Identity", "contiguous", "detach", "clone", "float", "to")
def _identity(call: Call, x: fx.Node, *_: Any, **__: Any) -> fx.Node:
    return call.drop(x, "removed: changes nothing")


@rule("_assert")
def _assertion(call: Call, *_: Any, **__: Any) -> None:
    call.row.becomes = "removed: a check"


@rule("Softmax", "LogSoftmax", "softmax", "log_softmax")
def _softmax(call: Call, x: fx.Node, dim: Any = None, module: nn.Module | None = None, **_: Any) -> fx.Node:
    if not all(user.op == "output" for user in call.node.users):
        raise Refusal(
            "softmax is a nonlinearity inside the network", "remove it, or keep it as the last call"
        )
    kind = nn.LogSoftmax if "log" in call.row.call.lower() else nn.Softmax
    call.lowering.left_out = module or kind(dim)
    return call.drop(x, "removed: the read-out gives logits, in the same order")


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
        return float(value)
    raise Refusal("a clamp between tensors is not a ReLU", "clamp to numbers")


def _constant(value: Any) -> Any:
    if isinstance(value, (int, float, Tensor)):
        return value
    raise Refusal(
        f"{type(value).__name__} is not a constant the network can hold", "use a number or a buffer"
    )


def _per_channel(call: Call, x: fx.Node, *values: Any) -> list[Tensor]:
    """Numbers or tensors as one number or one per channel, all of one shape."""
    tensors = [torch.as_tensor(_constant(v), dtype=torch.float64) for v in values]
    if all(t.numel() == 1 for t in tensors):
        return [t.reshape(()) for t in tensors]
    shape = call.shape_of(x)
    vectors = []
    for t in tensors:
        if t.dim() > len(shape) or (t.dim() == len(shape) and t.shape[0] != 1):
            raise Refusal("a constant that differs between samples has no rule", "use one number per channel")
        spread = torch.broadcast_to(t, (1, *shape[1:])).transpose(0, 1).flatten(1)
        if not (spread == spread[:, :1]).all():
            raise Refusal(
                "a constant that differs within a channel has no rule", "use one number per channel"
            )
        vectors.append(spread[:, 0].clone())
    return vectors
