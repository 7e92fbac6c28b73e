"""Rules for products of two signals, softmax and attention."""

import math
from typing import Any

import torch
from torch import Tensor, fx

from rheobase.conversion.batch_dim import is_plain, model_shape
from rheobase.conversion.lowering import Call, Rule
from rheobase.conversion.refusals import Refusal, refuse_unknown
from rheobase.conversion.rules.arithmetic import MASKED, one_sample, refuse_mask
from rheobase.conversion.rules.matrices import read_einsum, reorder
from rheobase.conversion.rules.registry import RULES
from rheobase.network import Elementwise, MatMul, Mean, Permute, Product, Scale, Softmax

BECOMES = "attention: events, analog softmax"
_LEAST_NORM = 1e-5


def _lower_matmul(call: Call, x: Any, other: Any) -> fx.Node:
    if not isinstance(x, fx.Node) or not isinstance(other, fx.Node):
        return RULES["matmul"](call, x, other)  # type: ignore[no-any-return]
    for signal in (x, other):
        dims = len(model_shape(call.shape_of(signal), signal))
        if dims < 3 or signal.meta.get("at", 0) > dims - 3:
            raise Refusal(f"{call.row.call} multiplies samples with each other", "keep the batch apart")
    return call.emit(MatMul(), x, other)


def _lower_baddbmm(call: Call, added: Any, x: Any, y: Any, *, beta: float = 1, alpha: float = 1) -> fx.Node:
    """A product of matrices plus a constant, such as a bias by distance."""
    if not isinstance(added, Tensor):
        raise Refusal(f"{call.row.call} adds a signal to a product", "write it as a sum and a product")
    product = _lower_matmul(call, x, y)
    factor = torch.tensor(alpha, dtype=torch.float64, device="cpu")
    return call.emit(Scale(factor, _read_mask(call, beta * added, False, product)), product, becomes=BECOMES)


def _lower_einsum(call: Call, equation: str, *operands: Any) -> fx.Node:
    """A matrix product in index notation: one index of each signal is kept, and one is summed over."""
    terms, signals, result = read_einsum(equation, operands)
    if len(signals) == 1 or any(isinstance(signal, Tensor) for signal in signals):
        return RULES["einsum"](call, equation, *operands)  # type: ignore[no-any-return]
    if len(signals) != 2 or len(terms) != 2 or not result or "." in equation:
        raise refuse_unknown("einsum")
    a, b = terms
    kept_a, kept_b, summed = set(a) - set(b), set(b) - set(a), (set(a) & set(b)) - set(result)
    shared = [letter for letter in result if letter in a and letter in b]
    matrix = len(kept_a) == len(kept_b) == len(summed) == 1 and {*result} == {*shared, *kept_a, *kept_b}
    nodes = all(isinstance(s, fx.Node) and is_plain(s) for s in signals)
    if not matrix or not nodes or not a[0] == b[0] == result[0]:
        raise Refusal(f"einsum {equation!r} is not a product of matrices with the batch first", "use matmul")
    (i,), (j,), (k,) = kept_a, kept_b, summed
    x = reorder(call, signals[0], a, [*shared, i, k])
    y = reorder(call, signals[1], b, [*shared, k, j])
    sizes = dict(zip(result, call.shape, strict=True))
    product = call.emit(MatMul(), x, y, shape=[sizes[letter] for letter in (*shared, i, j)])
    return reorder(call, product, [*shared, i, j], result)


def _lower_softmax(
    call: Call, x: fx.Node, dim: int | None = None, *_: Any, module: Any = None, **__: Any
) -> fx.Node:
    dim = dim if module is None else module.dim
    if call.is_last and not call.is_one_of_several:
        return RULES["softmax"](call, x, dim, module)  # type: ignore[no-any-return]
    if dim is None:
        raise Refusal("softmax without a dimension", "name it: softmax(x, dim=-1)")
    shape, place = call.shape_of(x), call.dim(x, dim)
    last = len(shape) - 1
    if place == last:
        return call.emit(Softmax(), x)
    order = [last if d == place else place if d == last else d for d in range(len(shape))]
    turned = [shape[d] for d in order]
    x = call.emit(Permute(order), x, shape=turned)
    x = call.emit(Softmax(), x, shape=turned)
    return call.emit(Permute(order), x, becomes="analog softmax")


def _lower_attention(
    call: Call, q: Any = None, k: Any = None, v: Any = None, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, **named: Any,
) -> fx.Node:  # fmt: skip
    q, k, v = named.get("query", q), named.get("key", k), named.get("value", v)
    if dropout_p:
        raise Refusal(
            f"attention with dropout_p={dropout_p} drops values in evaluation too",
            "pass dropout_p=self.p if self.training else 0.0",
        )
    if len({len(call.shape_of(x)) for x in (q, k, v)}) > 1 or call.shape_of(q)[1] != call.shape_of(k)[1]:
        raise Refusal("the keys of this attention have fewer heads", "repeat the heads of keys and values")
    dims = len(call.shape_of(k))
    turned = [*range(dims - 2), dims - 1, dims - 2]
    k = call.emit(Permute(turned), k, shape=[call.shape_of(k)[d] for d in turned], part="k")
    return attend(call, q, k, v, attn_mask, causal=is_causal, scale=scale)


def attend(
    call: Call, q: fx.Node, k: fx.Node, v: fx.Node, mask: Any, causal: bool, scale: float | None = None,
    prefix: str = "",
) -> fx.Node:  # fmt: skip
    """softmax(q·k·scale + mask)·v over the last two dimensions of lowered signals; k is transposed."""
    rows, width = call.shape_of(q)[:-1], call.shape_of(q)[-1]
    shape = [*rows, call.shape_of(k)[-1]]
    logits = call.emit(MatMul(), q, k, shape=shape, part=f"{prefix}logits")
    factor = torch.tensor(1 / math.sqrt(width) if scale is None else scale, dtype=torch.float64, device="cpu")
    scaled = Scale(factor, _read_mask(call, mask, causal, logits))
    logits = call.emit(scaled, logits, shape=shape, part=f"{prefix}scale")
    weights = call.emit(Softmax(), logits, shape=shape, part=f"{prefix}softmax")
    shape = [*rows, call.shape_of(v)[-1]]
    return call.emit(MatMul(), weights, v, shape=shape, part=f"{prefix}mix", becomes=BECOMES)


def _read_mask(call: Call, mask: Any, causal: bool, logits: fx.Node) -> Tensor:
    """What is added to logits (B, ..., rows, columns), for one sample."""
    if isinstance(mask, fx.Node):
        raise refuse_mask(call.row.call)
    shape, none = call.shape_of(logits), torch.zeros((), dtype=torch.float64, device="cpu")
    if causal and mask is None:
        mask = torch.ones(*shape[-2:], dtype=torch.bool, device="cpu").tril()
    if mask is None:
        return none
    added = (torch.where(mask, 0.0, MASKED) if mask.dtype == torch.bool else mask).double().clamp(min=MASKED)
    if logits.meta.get("merged"):
        sample = one_sample(call, logits, added)
    else:
        rows = added.reshape(*[1] * (len(shape) - added.dim()), *added.shape)
        if not bool((rows == rows[:1]).all()):
            raise Refusal("a mask that differs between samples has no rule", "use one mask for all samples")
        sample = rows[0]
    return sample if bool(sample.any()) else none


def _elementwise(function: str) -> Rule:
    return lambda call, x: call.emit(Elementwise(function), x)


def _lower_pow(call: Call, x: Any, exponent: Any) -> fx.Node:
    names = {2: "square", 3: "cube", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}
    if not isinstance(x, fx.Node) or exponent not in names:
        raise Refusal(f"the power {exponent} has no rule", f"use one of {', '.join(map(str, names))}")
    return call.emit(Elementwise(names[exponent]), x)


def _lower_div(call: Call, x: Any, other: Any) -> fx.Node:
    if not isinstance(other, fx.Node):
        return RULES["div"](call, x, other)  # type: ignore[no-any-return]
    inverse = call.emit(Elementwise("reciprocal"), other, shape=call.shape_of(other))
    return RULES["mul"](call, x, inverse)  # type: ignore[no-any-return]


def _lower_vector_norm(
    call: Call, x: fx.Node, ord: float = 2, dim: Any = None, keepdim: bool = False, **named: Any
) -> fx.Node:
    """The root of a sum of squares."""
    if ord != 2 or dim is None or any(value is not None for value in named.values()):
        raise Refusal(
            f"a norm of order {ord} over {'all dimensions' if dim is None else dim} has no rule",
            "use order 2 and name the dimensions",
        )
    squares = call.emit(Elementwise("square"), x, shape=call.shape_of(x), part="square")
    return call.emit(Elementwise("sqrt"), RULES["sum"](call, squares, dim, keepdim), becomes="norm")


def _lower_least_norm(call: Call, x: fx.Node, min: Any = None, *args: Any, **named: Any) -> fx.Node:
    """A norm that is kept from zero, as a divisor: the least is added, which changes no other norm."""
    computed = isinstance(x, fx.Node) and x.op == "call_module"
    part = call.lowering.root.get_submodule(str(x.target)) if computed else None
    if getattr(part, "function", "") != "sqrt" or not isinstance(min, float) or not 0 < min <= _LEAST_NORM:
        return RULES["clamp_min"](call, x, min, *args, **named)  # type: ignore[no-any-return]
    return call.emit(_add_least(min), x)


def _add_least(least: float) -> Scale:
    return Scale(torch.ones((), device="cpu"), torch.tensor(least, dtype=torch.float64, device="cpu"))


def _lower_normalize(
    call: Call, x: fx.Node, p: float = 2, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> fx.Node:
    """The signal over its norm along a dimension."""
    if p != 2 or eps > _LEAST_NORM or out is not None:
        raise Refusal(f"normalize with p={p} and eps={eps} has no rule", "use p=2, a small eps and no out")
    whole, place = call.shape_of(x), call.dim(x, dim)
    rows = [*whole[:place], 1, *whole[place + 1 :]]
    count = torch.tensor(whole[place], dtype=torch.float64, device="cpu")
    norm = call.emit(Elementwise("square"), x, shape=whole, part="square")
    norm = call.emit(Mean([place], True), norm, shape=rows, part="mean")
    norm = call.emit(Scale(count), norm, shape=rows, part="sum")
    norm = call.emit(Elementwise("sqrt"), norm, shape=rows, part="sqrt")
    norm = call.emit(_add_least(eps), norm, shape=rows, part="least")
    inverse = call.emit(Elementwise("reciprocal"), norm, shape=rows, part="inverse")
    return call.emit(Product(), x, inverse, shape=whole, becomes="over its norm")


ANALOG_RULES: dict[str, Rule] = {
    **{name: _elementwise(name) for name in ("square", "sqrt", "rsqrt", "reciprocal", "exp")},
    **dict.fromkeys(("pow", "__pow__"), _lower_pow),
    **dict.fromkeys(("div", "truediv", "divide"), _lower_div),
    **dict.fromkeys(("vector_norm", "linalg_vector_norm"), _lower_vector_norm),
    "clamp_min": _lower_least_norm,
    "normalize": _lower_normalize,
}
PRODUCTS: dict[str, Rule] = {
    **dict.fromkeys(("matmul", "__matmul__", "bmm", "mm"), _lower_matmul),
    "einsum": _lower_einsum,
    "baddbmm": _lower_baddbmm,
    "scaled_dot_product_attention": _lower_attention,
}
SOFTMAX: dict[str, Rule] = dict.fromkeys(("softmax", "Softmax", "_softmax"), _lower_softmax)
