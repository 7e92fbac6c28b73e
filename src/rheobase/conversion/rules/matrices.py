"""Rules for products of a signal and a constant matrix."""

import string
from collections.abc import Sequence
from typing import Any

from torch import Tensor, fx

from rheobase.conversion.batch_dim import is_plain
from rheobase.conversion.lowering import Call
from rheobase.conversion.refusals import Refusal
from rheobase.conversion.rules.layers import lower_linear, make_linear
from rheobase.conversion.rules.registry import RULES, rule
from rheobase.network import Permute


@rule("matmul", "__matmul__", "bmm", "mm")
def _matmul(call: Call, x: Any, other: Any) -> fx.Node:
    matrix, signal = (x, other) if isinstance(x, Tensor) else (other, x)
    if not isinstance(matrix, Tensor):
        RULES["anything else"](call)  # which refuses
    if matrix.dim() != 2:
        raise Refusal(
            f"{call.row.call} multiplies by a constant of shape {tuple(matrix.shape)}",
            "use one matrix, of two dimensions",
        )
    if matrix is other:
        return lower_linear(call, signal, matrix.T)
    rows = string.ascii_uppercase[: len(call.shape_of(signal)) - 2]
    if not rows:
        raise Refusal(f"{call.row.call} mixes samples", "put the matrix on the right, as in x @ matrix")
    return _multiply(call, signal, f"{rows}kj", matrix, "ik", f"{rows}ij")


@rule("addmm")
def _addmm(call: Call, bias: Any, x: Any, matrix: Any) -> fx.Node:
    if not isinstance(x, fx.Node) or not isinstance(matrix, Tensor):
        RULES["anything else"](call)  # which refuses
    return lower_linear(call, x, matrix.T, bias)


@rule("einsum")
def _einsum(call: Call, equation: str, *operands: Any) -> fx.Node:
    terms, factors, result = read_einsum(equation, operands)
    if len(factors) == 1:
        raise Refusal(f"einsum {equation!r} of one signal has no rule", "use permute, sum or mean")
    if not any(isinstance(factor, Tensor) for factor in factors):
        return RULES["anything else"](call)  # type: ignore[no-any-return]
    matrices = [isinstance(factor, Tensor) and factor.dim() == 2 for factor in factors]
    if len(factors) == 2 and any(matrices):
        place = matrices.index(True)
        indices, term = terms[place], terms[1 - place]
        summed, kept = set(indices) & set(term), set(indices) - set(term)
        single = len(summed) == len(kept) == 1 and len({*term}) == len(term)
        if single and sorted(result) == sorted({*term} - summed | kept):
            return _multiply(call, factors[1 - place], term, factors[place], indices, result)
    raise Refusal(
        f"einsum {equation!r} is not written as the product of a signal and one constant matrix",
        "name all indices and those of the result, and sum over one, as in 'bnc,ck->bnk'",
    )


def read_einsum(equation: str, operands: Sequence[Any]) -> tuple[list[str], Sequence[Any], str]:
    """The indices of each factor of an einsum, the factors, and the indices of the result."""
    first = operands[0]
    factors = first if len(operands) == 1 and isinstance(first, (tuple, list)) else operands
    terms, _, result = equation.replace(" ", "").partition("->")
    return terms.split(","), factors, result


def reorder(call: Call, x: fx.Node, found: Sequence[str], wanted: Sequence[str]) -> fx.Node:
    """A signal with its dimensions, each named by a letter, in another order."""
    order = [list(found).index(letter) for letter in wanted]
    if order == sorted(order):
        return x
    shape = call.shape_of(x)
    return call.emit(Permute(order), x, shape=[shape[d] for d in order])


def _multiply(call: Call, x: fx.Node, term: str, matrix: Tensor, indices: str, result: str) -> fx.Node:
    """The sum over one index that a signal shares with a matrix: a linear layer along that dimension."""
    (summed,), (kept,) = set(indices) & set(term), set(indices) - set(term)
    weight = matrix if indices == kept + summed else matrix.T
    if term[-1] == summed and result == term[:-1] + kept:
        return lower_linear(call, x, weight)
    if not is_plain(x) or not term[0] == result[0] != summed:
        raise Refusal(f"{call.row.call} moves the batch", "keep dimension 0, the batch, as it is")
    others = term.replace(summed, "")
    x = reorder(call, x, term, others + summed)
    shape = (*call.shape_of(x)[:-1], len(weight))
    product = call.emit(make_linear(weight, None), x, shape=shape, becomes="weights")
    return reorder(call, product, others + kept, result)
