"""Rules for sums, products and concatenation, with signals or constants."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from rheobase.conversion.batch_dim import is_plain, model_shape, place_of
from rheobase.conversion.lowering import Call
from rheobase.conversion.refusals import NeedsExample, Refusal
from rheobase.conversion.rules.layers import is_input
from rheobase.conversion.rules.registry import rule
from rheobase.io import TOKENS
from rheobase.network import Add, Concat, Fixed, Product, Scale, find_like

MASKED = -1e30
"""What masks add to a logit instead of −∞: its exponential is 0 all the same, and files take it."""

NEW = "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like", "full_like", "new_tensor"
"""Functions that make a constant of the shape or the type of a signal."""


@rule("add", "add_", "iadd", "__add__", "__radd__")
def _add(call: Call, x: Any, other: Any, alpha: float = 1) -> fx.Node:
    constant, signal = (other, x) if isinstance(x, fx.Node) else (x, other)
    if constant is signal:
        result = call.emit(_factor(1.0 + alpha), x)
    elif isinstance(constant, fx.Node) or _enlarges(call, signal, constant):
        if alpha != 1:
            other = call.emit(_factor(alpha), other) if isinstance(other, fx.Node) else other * alpha
        parts = [part if isinstance(part, fx.Node) else _fixed(call, part, signal) for part in (x, other)]
        result = call.emit(Add(), *parts, becomes="sum")
    elif constant is x:
        result = call.emit(Scale(*_laid_out(call, other, alpha, x)), other, becomes="scale and shift")
    else:
        result = call.emit(Scale(*_laid_out(call, x, 1.0, _constant(other) * alpha)), x, becomes="shift")
    call.overwrite(call.in_place, result)
    return result


def _factor(value: float) -> Scale:
    return Scale(torch.tensor(value, dtype=torch.float64, device="cpu"))


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
    elif _enlarges(call, x, other):
        result = call.emit(Product(), x, _fixed(call, other, x))
    else:
        result = call.emit(Scale(*_laid_out(call, x, other, 0.0)), x)
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
def _cat(call: Call, x: Sequence[Any], dim: int = 0, axis: int | None = None) -> fx.Node:
    x = [part for part in x if isinstance(part, fx.Node) or part.numel()]
    signals = [part for part in x if isinstance(part, fx.Node)]
    if len(signals) < len(x) and not call.lowering.shapes_known:
        raise NeedsExample("the shape of a constant among signals is not known")
    dim = dim if axis is None else axis
    if not call.lowering.shapes_known or is_plain(signals[0]):
        dim = dim if dim >= 0 else dim + len(call.shape)
        if dim == 0:
            raise Refusal(
                "concatenation along the batch mixes samples", "concatenate along a later dimension"
            )
    else:
        dim = call.dim(signals[0], dim)
    parts = [part if isinstance(part, fx.Node) else _fixed(call, part, signals[0]) for part in x]
    return call.emit(Concat(dim), *parts, becomes="concat")


def _enlarges(call: Call, x: fx.Node, constant: Any) -> bool:
    """Whether a constant has more values than the signal along some dimension of one value."""
    if not isinstance(constant, Tensor) or constant.numel() == 1 or not call.lowering.shapes_known:
        return False
    shape = torch.Size(model_shape(call.shape_of(x), x))
    pairs = zip(reversed(constant.shape), reversed(shape), strict=False)
    return constant.dim() <= len(shape) and any(n > 1 == size for n, size in pairs)


def _fixed(call: Call, value: Tensor, beside: fx.Node) -> fx.Node:
    """A constant as a signal beside another one."""
    sample = one_sample(call, beside, value, enlarges=True)
    source = next(node for node in call.lowering.graph.nodes if node.op == "placeholder")
    node = call.lowering.add(f"{call.row.name}_constant", Fixed(sample), [source])
    node.meta["shape"] = (call.shape_of(beside)[0], *sample.shape)
    node.meta.update(place_of(beside))
    return node


@rule("masked_fill", "masked_fill_")
def _masked_fill(call: Call, x: fx.Node, mask: Any, value: Any) -> fx.Node:
    if not isinstance(mask, Tensor) or isinstance(value, fx.Node):
        raise refuse_mask(call.row.call)
    kept = ~mask.bool()
    shift = torch.where(kept, 0.0, torch.as_tensor(_constant(value), dtype=torch.float64, device=mask.device))
    result = call.emit(Scale(*_laid_out(call, x, kept.double(), shift)), x, becomes="mask")
    call.overwrite(call.in_place, result)
    return result


@rule("where")
def _where(call: Call, condition: Any, x: Any, other: Any = None) -> fx.Node:
    if not isinstance(condition, Tensor):
        raise refuse_mask(call.row.call)
    if isinstance(x, fx.Node) and not isinstance(other, fx.Node):
        return _masked_fill(call, x, ~condition, other)
    if isinstance(other, fx.Node) and not isinstance(x, fx.Node):
        return _masked_fill(call, other, condition, x)
    raise Refusal("a choice between two signals has no spiking form", "choose one of them and a number")


@rule("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not")
def _compare(call: Call, x: Any, other: Any = None, **__: Any) -> Tensor:
    refusal = refuse_mask(call.row.call)
    if isinstance(other, Tensor) and other.numel() == 1 and not other.is_floating_point():
        other = other.item()
    if isinstance(x, fx.Node) and is_input(call, x):
        whole = call.node.all_input_nodes[0].meta.get("dtype") in TOKENS
        if whole and call.function in ("eq", "ne") and isinstance(other, int):  # a token, as of padding
            call.lowering.excluded |= {other} if other >= 0 else set()  # no table has others
            call.row.becomes = f"constant: inputs must not hold the token {other}"
            device = find_like(call.lowering.traced).device
            return torch.full(call.shape, call.function == "ne", dtype=torch.bool, device=device)
        remedy = "wrap the model so that it passes a mask or positions that do not depend on it"
        raise Refusal(refusal.reason, f"{remedy}, such as position_ids=self.positions, a buffer")
    raise refusal


@rule("isnan", "isinf", "isfinite")
def _is_finite(call: Call, x: fx.Node, **__: Any) -> Tensor:
    call.row.becomes = "constant: signals are finite"
    device = find_like(call.lowering.traced).device
    return torch.full(call.shape_of(x), call.function == "isfinite", dtype=torch.bool, device=device)


@rule(*NEW)
def _new(call: Call, x: fx.Node, *args: Any, **named: Any) -> Tensor:
    call.row.becomes = "constant"
    device = find_like(call.lowering.traced).device
    like = torch.empty(call.shape_of(x), dtype=call.node.meta["dtype"], device=device)
    function = getattr(like, call.function, None) or partial(getattr(torch, call.function), like)
    result: Tensor = function(*args, **{k: v for k, v in named.items() if k not in ("device", "pin_memory")})
    return result


def refuse_mask(call: str) -> Refusal:
    """The refusal of a mask that is computed from the input."""
    return Refusal(
        f"{call} makes a mask that depends on the data, and the network's connections are fixed",
        "use an activation such as F.relu; else a mask that is a buffer of the model, or inputs of one "
        "length without padding",
    )


def _constant(value: Any) -> Any:
    if isinstance(value, (int, float, Tensor)):
        return value
    raise Refusal(f"a {type(value).__name__} cannot be a constant of the network", "use a number or a buffer")


def _laid_out(call: Call, x: fx.Node, *values: Any) -> list[Tensor]:
    """Constants as one number, one per channel, or in a shape that broadcasts against a sample."""
    tensors = [
        v.double() if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.float64, device="cpu")
        for v in map(_constant, values)
    ]
    # An infinite mask stays finite, as files have it; its exponential is 0 all the same.
    tensors = [t.nan_to_num(neginf=MASKED) if t.isneginf().any() else t for t in tensors]
    if all(t.numel() == 1 for t in tensors):
        return [t.reshape(()) for t in tensors]
    samples = [one_sample(call, x, t) if t.numel() > 1 else t.reshape(()) for t in tensors]
    shape = call.shape_of(x)
    spread = [torch.broadcast_to(t, (1, *shape[1:])).transpose(0, 1).flatten(1) for t in samples]
    if all((s == s[:, :1]).all() for s in spread):
        return [s[:, 0].clone() for s in spread]
    return samples


def one_sample(call: Call, x: fx.Node, constant: Tensor, enlarges: bool = False) -> Tensor:
    """A constant of the model, which broadcasts against a signal, for one sample of the lowered signal."""
    lowered = call.shape_of(x)
    shape, at, merged = model_shape(lowered, x), x.meta.get("at", 0), bool(x.meta.get("merged"))
    differs = constant.dim() > len(shape)
    if not differs:
        rows = constant.reshape(*[1] * (len(shape) - constant.dim()), *constant.shape).movedim(at, 0)
        if merged:
            count = lowered[1] if len(rows) == shape[at] else 1
            if x.meta.get("inner"):
                rows = rows.reshape(count, -1, *rows.shape[1:]).transpose(0, 1)
            else:
                rows = rows.reshape(-1, count, *rows.shape[1:])
        differs = len(rows) not in (1, lowered[0]) or not bool((rows == rows[:1]).all())
    if differs:
        raise Refusal("a constant that differs between samples has no rule", "use one number per channel")
    sample: Tensor = rows[0]
    if not enlarges and any(a not in (1, b) for a, b in zip(sample.shape, lowered[1:], strict=True)):
        raise Refusal(
            f"a constant of shape {tuple(constant.shape)} enlarges a signal of shape {tuple(shape)}",
            "repeat the signal first, with cat",
        )
    return sample
