"""Rules for sums, products and concatenation, with signals or constants."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from rheobase.conversion.lowering import Call
from rheobase.conversion.refusals import Refusal
from rheobase.conversion.rules.registry import rule
from rheobase.network import Add, Concat, Product, Scale


@rule("add", "add_", "iadd", "__add__", "__radd__")
def _add(call: Call, x: Any, other: Any, alpha: float = 1) -> fx.Node:
    if not isinstance(x, fx.Node):
        return call.emit(Scale(*_per_channel(call, other, alpha, x)), other, becomes="scale and shift")
    if other is x:
        result = call.emit(Scale(torch.tensor(1.0 + alpha)), x)
    elif isinstance(other, fx.Node):
        if alpha != 1:
            other = call.emit(Scale(torch.tensor(float(alpha))), other)
        result = call.emit(Add(), x, other, becomes="sum")
    else:
        result = call.emit(Scale(*_per_channel(call, x, 1.0, _constant(other) * alpha)), x, becomes="shift")
    call.overwrite(call.in_place, result)
    return result


@rule("sub", "sub_", "isub", "subtract")
def _sub(call: Call, x: Any, other: Any, alpha: float = 1) -> fx.Node:
    return _add(call, x, other, -alpha)


@rule("rsub")
def _rsub(call: Call, x: Any, other: Any, alpha: float = 1) -> fx.Node:
    return _add(call, other, x, -alpha)


@rule("mul", "mul_", "imul", "multiply", "__mul__", "__rmul__")
def _mul(call: Call, x: Any, other: Any) -> fx.Node:
    if not isinstance(x, fx.Node):
        x, other = other, x
    if isinstance(other, fx.Node):
        result = call.emit(Product(), x, other)
    else:
        result = call.emit(Scale(*_per_channel(call, x, other, 0.0)), x)
    call.overwrite(call.in_place, result)
    return result


@rule("div", "div_", "truediv", "itruediv", "divide")
def _div(call: Call, x: Any, other: Any) -> fx.Node:
    if not isinstance(x, fx.Node) or isinstance(other, fx.Node):
        raise Refusal(
            "division by a signal has no spiking form", "divide by a constant, or move it out of the model"
        )
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
    return call.emit(Concat(dim), *x)


def _constant(value: Any) -> Any:
    if isinstance(value, (int, float, Tensor)):
        return value
    raise Refusal(f"a {type(value).__name__} cannot be a constant of the network", "use a number or a buffer")


def _per_channel(call: Call, x: fx.Node, *values: Any) -> list[Tensor]:
    """Constants as one number or one per channel, all of one shape."""
    tensors = [torch.as_tensor(_constant(v), dtype=torch.float64) for v in values]
    if all(t.numel() == 1 for t in tensors):
        return [t.reshape(()) for t in tensors]
    shape = call.shape_of(x)
    vectors = []
    for t in tensors:
        if t.dim() > len(shape) or (t.dim() == len(shape) and t.shape[0] != 1):
            raise Refusal("a constant that differs between samples has no rule", "use one number per channel")
        try:
            spread = torch.broadcast_to(t, (1, *shape[1:])).transpose(0, 1).flatten(1)
        except RuntimeError:
            raise Refusal(
                f"a constant of shape {tuple(t.shape)} enlarges a signal of shape {tuple(shape)}",
                "repeat the signal first, with cat",
            ) from None
        if not (spread == spread[:, :1]).all():
            raise Refusal(
                "a constant that differs within a channel has no rule", "use one number per channel"
            )
        vectors.append(spread[:, 0].clone())
    return vectors
