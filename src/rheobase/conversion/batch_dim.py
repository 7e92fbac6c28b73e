"""Where the batch is in a signal of a model.

A lowered signal has the batch first, alone. Models also move it elsewhere, as in q, k, v of shape (3, B, …),
and merge it with windows or tokens, as in (B·windows, …). `at` is the position of the batch in the model's
shape; where it is `merged`, the lowered signal has what it was merged with as its second dimension. It is
`inner` where the samples follow each other, as in (tokens·B, …).
"""

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from rheobase.conversion.refusals import Refusal
from rheobase.network import (
    Activation,
    Add,
    Concat,
    Elementwise,
    LayerNorm,
    MatMul,
    Mean,
    Permute,
    Product,
    Reshape,
    RmsNorm,
    Scale,
    Slice,
    Softmax,
)

ANY_BATCH: tuple[type[nn.Module], ...] = (
    Activation, Add, Concat, Elementwise, LayerNorm, MatMul, Mean, Permute, Product, Reshape, RmsNorm, Scale,
    Slice, Softmax, nn.Identity, nn.Linear,
)  # fmt: skip
"""Operations whose rules know where the batch is."""


def is_plain(x: Any) -> bool:
    """Whether the batch alone is the first dimension of a signal in the model."""
    return not (isinstance(x, fx.Node) and (x.meta.get("at") or x.meta.get("merged")))


def place_of(x: fx.Node) -> dict[str, Any]:
    """Where the batch is in a signal of the model, as its `meta` has it."""
    return {"at": x.meta.get("at", 0)} | {fact: bool(x.meta.get(fact)) for fact in ("merged", "inner")}


def model_shape(shape: Sequence[int], x: fx.Node) -> list[int]:
    """The shape that a lowered signal of a shape has in the model."""
    batch, *others = shape
    if x.meta.get("merged"):
        batch *= others.pop(0)
    others.insert(x.meta.get("at", 0), batch)
    return others


def find_dim(x: fx.Node, dim: int, call: str) -> int:
    """The dimension of a lowered signal, given one of the model's."""
    at: int = x.meta.get("at", 0)
    if dim == at:
        raise Refusal(f"{call} along the batch mixes samples", "use a later dimension")
    return 1 + bool(x.meta.get("merged")) + dim - (dim > at)


def batch_first(shape: Sequence[int], at: int, batch: int, call: str) -> dict[str, Any]:
    """What a lowered signal of a shape of the model's is like: its shape, batch first, `at` and `merged`."""
    found, others = shape[at] if at < len(shape) else 0, [*shape[:at], *shape[at + 1 :]]
    if found == batch:
        return {"shape": (batch, *others), "at": at, "merged": False, "inner": False}
    if batch == 1 or found % batch or not found:
        raise Refusal(
            f"the result of {call}, {tuple(shape)}, mixes samples",
            "keep dimension 0, the batch, as it is; pass an example of two samples if it does",
        )
    return {"shape": (batch, found // batch, *others), "at": at, "merged": True}
