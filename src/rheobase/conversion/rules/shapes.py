"""Rules for calls that move values or take their mean."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.conversion.batch_dim import batch_first, is_plain, model_shape
from rheobase.conversion.lowering import Call
from rheobase.conversion.nodes import name_of
from rheobase.conversion.refusals import NeedsExample, Refusal, refuse_unknown
from rheobase.conversion.rules.registry import rule
from rheobase.network import Concat, Mean, Pad, Permute, Reshape, Scale, Slice

_BROADCASTING = ("add", "sub", "mul", "div", "truediv")
_MOST_COPIES = 64


@rule("flatten", "Flatten")
def _flatten(
    call: Call, x: fx.Node, start_dim: int = 0, end_dim: int = -1, module: nn.Flatten | None = None
) -> fx.Node:
    if module is not None:
        start_dim, end_dim = module.start_dim, module.end_dim
    if start_dim == 1 and end_dim == -1:
        return call.emit(Reshape((-1,)), x)
    return _reshape(call, x)


@rule(
    "reshape",
    "view",
    "_unsafe_view",
    "squeeze",
    "unsqueeze",
    "Unflatten",
    "unflatten",
    "view_as",
    "reshape_as",
)
def _reshape(call: Call, x: fx.Node, *sizes: Any, module: nn.Module | None = None, **_: Any) -> fx.Node:
    if call.lowering.shapes_known:
        place, inner = _new_place(call, x)
        node = _move_batch(call, _in_order(call, x), place)
        node.meta["inner"] = inner
        return node
    shape = sizes[0] if sizes and isinstance(sizes[0], (tuple, list, torch.Size)) else sizes
    named = call.row.call in ("x.view()", "x.reshape()", "reshape()")
    rest = [s for s in shape[1:] if isinstance(s, int)]
    if not named or not rest or len(rest) != len(shape) - 1 or (shape[0] == -1 and -1 in rest):
        raise NeedsExample(f"the shape of {call.row.call} is not known from the call alone")
    return call.emit(Reshape(rest), x)


def _new_place(call: Call, x: fx.Node) -> tuple[int, bool]:
    """Where the batch is in another shape, and whether the samples then follow each other in its dimension.

    As many values stay before the samples.
    """
    at, lowered, shape = x.meta.get("at", 0), call.shape_of(x), call.shape
    before = math.prod(model_shape(lowered, x)[:at]) * (lowered[1] if x.meta.get("inner") else 1)
    for place, size in enumerate(shape):
        outer, rest = divmod(before, math.prod(shape[:place]))
        samples = outer * call.lowering.batch
        if not rest and (size % samples == 0 if outer == 1 else size == samples):
            return place, outer > 1
    if at:
        raise Refusal(f"{call.row.call} of a signal whose batch is dimension {at}", "move it first again")
    return 0, False


def _in_order(call: Call, x: fx.Node) -> fx.Node:
    """The signal with the values of each sample in the order of the model."""
    at, shape = x.meta.get("at", 0), call.shape_of(x)
    if not at or not x.meta.get("merged"):
        return x
    order = [0, *range(2, 2 + at), 1, *range(2 + at, len(shape))]
    return call.emit(Permute(order), x, shape=[shape[d] for d in order])


def _move_batch(call: Call, x: fx.Node, place: int) -> fx.Node:
    """The signal in the shape of the call's result, whose batch is at a place."""
    batch, shape = call.lowering.batch, call.shape
    if not place or shape[place] == batch:
        return _reshape_to(call, x, place)
    sizes = [*shape[:place], shape[place] // batch, *shape[place + 1 :]]
    x = call.emit(Reshape(sizes), x, shape=[batch, *sizes])
    others = [d for d in range(1, len(sizes) + 1) if d != place + 1]
    return call.emit(Permute([0, place + 1, *others]), x, at=place)


@rule("size", "dim", "getattr")
def _size(call: Call, x: fx.Node, *which: Any) -> Any:
    if call.lowering.shapes_known:
        if which == ("mT",):
            dims = len(call.shape)
            return permute(call, x, [*range(dims - 2), dims - 1, dims - 2])
        if which == ("data",):
            return call.drop(x, "removed: changes nothing")
        raise Refusal(f"the attribute {which[0]} of a signal has no rule", "use permute or reshape")
    if call.row.call == "getattr()" and which != ("shape",):
        raise NeedsExample(f"the attribute {which[0]} is not known")
    return None  # without an example it can only be the batch size


@rule("getitem")
def _getitem(call: Call, x: Any, index: Any) -> Any:
    if x is None:
        return None
    if isinstance(x, tuple):
        if x[index] is None:
            raise Refusal(
                f"result {index} of {call.node.args[0]} is not computed, such as the weights of attention",
                "use its first result only",
            )
        call.row.becomes = "slice"
        call.lowering.memory.view(call.node, call.node.all_input_nodes[0])
        return x[index]
    if not call.lowering.shapes_known and (isinstance(x, Tensor) or not isinstance(index, tuple)):
        raise NeedsExample("the shape of the indexed signal is not known")
    index = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, fx.Node) for part in index):
        raise Refusal("indexing by a signal has no spiking form", "index by constants")
    extents = model_shape(call.shape_of(x), x)
    taken = sum(part is not None and part is not Ellipsis for part in index)
    if Ellipsis in index:
        place = index.index(Ellipsis)
        index = (*index[:place], *[slice(None)] * (len(extents) - taken), *index[place + 1 :])
    at = x.meta.get("at", 0)
    whole, dim, new_at = x, 0, at
    for part in index:
        if part is None:
            new_at += dim <= at
            continue
        if dim == at and part != slice(None):
            raise Refusal(f"indexing by {part} may mix samples", "keep the batch: index as x[:, ...]")
        if isinstance(part, int) and not isinstance(part, bool):  # x[:, True] adds a dimension
            new_at -= dim < at
            part = slice(part % extents[dim], part % extents[dim] + 1)
        if not isinstance(part, slice):
            raise Refusal(f"indexing by {part} has no spiking form", "use integers and slices")
        x, dim = _take(call, x, dim, *part.indices(extents[dim])), dim + 1
    if len(call.shape) == len(extents) and all(isinstance(part, slice) for part in index):
        return call.drop(x, "removed: changes nothing") if x is whole else x
    return _reshape_to(call, x, new_at)


def _take(call: Call, x: fx.Node, dim: int, start: int, stop: int, step: int) -> fx.Node:
    """A part of a signal along a dimension of the model's."""
    extent = model_shape(call.shape_of(x), x)[dim]
    if step == 1 and stop - start == extent:
        return x
    if stop <= start:
        raise Refusal(f"a slice from {start} to {stop} takes nothing", "leave it out")
    place, shape = call.dim(x, dim), list(call.shape_of(x))
    if step != 1:  # as one of the columns of a table
        if step < 1 or extent % step or start >= step or stop < extent - step + 1 + start:
            raise Refusal(f"a step of {step} over {extent} positions has no rule", "use slices with step 1")
        shape[place : place + 1] = [extent // step, step]
        x = call.emit(Reshape(shape[1:]), x, shape=shape)
        shape[place + 1] = 1
        x = call.emit(Slice(place + 1, start, 1), x, shape=shape)
        del shape[place + 1]
        return call.emit(Reshape(shape[1:]), x, shape=shape, becomes="slice")
    shape[place] = stop - start
    return call.emit(Slice(place, start, stop - start), x, shape=shape)


def _reshape_to(call: Call, x: fx.Node, at: int) -> fx.Node:
    """The signal in the shape of the call's result, with the batch at a place."""
    node = call.emit(placed := Reshape(()), x, at=at)
    placed.shape = node.meta["shape"][1:]
    return node


@rule("slice")
def _slice(
    call: Call, x: fx.Node, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> fx.Node:
    extents = model_shape(call.shape_of(x), x)
    dim %= len(extents)
    bounds = slice(start, end, step).indices(extents[dim])
    taken = _take(call, x, dim, *bounds)
    return call.drop(x, "removed: changes nothing") if taken is x else taken


@rule("narrow")
def _narrow(call: Call, x: fx.Node, dim: int, start: int, length: int) -> fx.Node:
    start %= model_shape(call.shape_of(x), x)[dim]
    return _slice(call, x, dim, start, start + length)


@rule("select")
def _select(call: Call, x: fx.Node, dim: int, index: int) -> fx.Node:
    extents, at = model_shape(call.shape_of(x), x), x.meta.get("at", 0)
    dim %= len(extents)
    if dim == at:
        raise Refusal("selecting a sample mixes samples", "select along a later dimension")
    start = index % extents[dim]
    return _reshape_to(call, _take(call, x, dim, start, start + 1, 1), at - (dim < at))


@rule("chunk", "split", "unbind", "split_with_sizes")
def _chunk(
    call: Call, x: fx.Node, sizes: Any = None, dim: int | None = None, **_: Any
) -> tuple[fx.Node, ...]:
    shapes = call.node.meta.get("tensors")
    if not shapes:
        raise NeedsExample("the sizes of the parts are not known")
    single = call.function == "unbind"
    dim = (sizes if single and dim is None else dim) or 0
    at = x.meta.get("at", 0)
    dim %= len(model_shape(call.shape_of(x), x))
    if dim == at:
        raise Refusal("splitting the batch mixes samples", "split along a later dimension")
    parts, start = [], 0
    for shape in shapes:
        stop = start + (1 if single else shape[dim])
        part = _take(call, x, dim, start, stop, 1)
        if single:
            facts = batch_first(shape, at - (dim < at), call.lowering.batch, call.row.call)
            part = call.emit(Reshape(facts["shape"][1:]), part, shape=facts["shape"], at=facts["at"])
        parts.append(part)
        start = stop
    call.row.becomes = "slices"
    return tuple(parts)


@rule("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "adjoint")
def _permute(call: Call, x: fx.Node, *dims: Any, **named: Any) -> fx.Node:
    numbered = torch.empty(
        tuple(range(len(call.shape))), device="meta"
    )  # the size of a dimension is its number
    order = getattr(numbered, call.function)(*dims, **named).shape
    return permute(call, x, order)


def permute(call: Call, x: fx.Node, order: Sequence[int]) -> fx.Node:
    """A signal with the model's dimensions in another order."""
    at, merged = x.meta.get("at", 0), bool(x.meta.get("merged"))
    places = [*range(1 + merged), *(call.dim(x, d) for d in order if d != at)]
    extents = call.shape_of(x)
    shape, new_at = [extents[place] for place in places], list(order).index(at)
    if places == list(range(len(places))):
        return call.emit(Reshape(shape[1:]), x, shape=shape, at=new_at, becomes="permute")
    return call.emit(Permute(places), x, shape=shape, at=new_at)


@rule("stack")
def _stack(call: Call, signals: Sequence[Any], dim: int = 0) -> fx.Node:
    dim %= len(call.shape)
    if dim == 0 or not all(isinstance(x, fx.Node) and is_plain(x) for x in signals):
        raise refuse_unknown("stack")
    parts = []
    for x in signals:
        batch, *sizes = call.shape_of(x)
        sizes.insert(dim - 1, 1)
        parts.append(call.emit(Reshape(sizes), x, shape=(batch, *sizes)))
    return call.emit(Concat(dim), *parts, becomes="stack")


@rule("expand", "expand_as")
def _expand(call: Call, x: fx.Node, *_: Any, **__: Any) -> fx.Node:
    """Copies along dimensions of one value, as of keys that several heads of attention share."""
    shape = [*call.shape_of(x)]
    copies = {d: n for d, (m, n) in enumerate(zip(shape, call.shape, strict=False)) if m != n}
    if len(model_shape(shape, x)) != len(call.shape):
        raise refuse_unknown(call.function)
    call.lowering.memory.view(call.node, call.node.all_input_nodes[0])
    if all(_broadcasts(call.node, user) for user in call.node.users):
        return call.drop(x, "removed: sums and products broadcast")
    if not is_plain(x) or math.prod(copies.values()) > _MOST_COPIES:
        raise refuse_unknown(call.function)
    for d, n in copies.items():
        shape[d] = n
        x = call.emit(Concat(d), *[x] * n, shape=shape, becomes="copies")
    return x if copies else call.drop(x, "removed: changes nothing")


def _broadcasts(copies: fx.Node, user: fx.Node) -> bool:
    """Whether a call has another signal of the shape of some copies, so that it needs none."""
    others = [n for n in user.all_input_nodes if n is not copies and "expand" not in name_of(n)]
    whole = any(n.meta.get("shape") == copies.meta["shape"] and _depends_on_input(n) for n in others)
    return whole and name_of(user).rpartition(".")[2] in _BROADCASTING


def _depends_on_input(node: fx.Node) -> bool:
    found, pending = {node}, [node]
    while pending:
        inputs = {*pending.pop().all_input_nodes} - found
        found |= inputs
        pending += inputs
    return any(n.op == "placeholder" for n in found)


@rule("roll")
def _roll(call: Call, x: fx.Node, shifts: Any, dims: Any = None) -> fx.Node:
    if dims is None:
        raise Refusal("a roll over all dimensions mixes samples", "name the dimensions")
    pairs = zip(*((v,) if isinstance(v, int) else v for v in (shifts, dims)), strict=True)
    for shift, dim in pairs:
        place, shape = call.dim(x, dim), call.shape_of(x)
        extent = shape[place]
        if first := -shift % extent:  # what comes to the front
            halves = []
            for start, length in ((first, extent - first), (0, first)):
                sizes = [*shape[:place], length, *shape[place + 1 :]]
                halves.append(call.emit(Slice(place, start, length), x, shape=sizes))
            x = call.emit(Concat(place), *halves, shape=shape, becomes="roll")
    return x if call.row.becomes else call.drop(x, "removed: changes nothing")


@rule("mean")
def _mean(call: Call, x: fx.Node, dim: Any = None, keepdim: bool = False, axis: Any = None) -> fx.Node:
    dim = dim if axis is None else axis
    dims = [dim] if isinstance(dim, int) else list(dim or [0])
    at = x.meta.get("at", 0)
    if any(d < 0 for d in dims):
        dims = [d % len(model_shape(call.shape_of(x), x)) for d in dims]
    if at in dims:
        raise Refusal(
            "a mean over the batch mixes samples", "take the mean over later dimensions, such as mean([2, 3])"
        )
    places = dims if is_plain(x) else [call.dim(x, d) for d in dims]
    return call.emit(Mean(places, keepdim), x, at=at if keepdim else at - sum(d < at for d in dims))


@rule("sum")
def _sum(call: Call, x: fx.Node, dim: Any = None, keepdim: bool = False, axis: Any = None) -> fx.Node:
    count = math.prod(call.shape_of(x)) // math.prod(call.shape)
    return call.emit(
        Scale(torch.tensor(count, dtype=torch.float64, device="cpu")),
        _mean(call, x, dim, keepdim, axis),
        becomes="sum",
    )


@rule("pad")
def _pad(
    call: Call, x: fx.Node, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> fx.Node:
    if mode != "constant" or (value or 0) != 0:
        found = f"the constant {value:g}" if mode == "constant" else f"mode {mode!r}"
        raise Refusal(
            f"padding with {found} is not zero-padding",
            "pad with zeros, or let the convolution pad: nn.Conv2d(…, padding_mode='reflect')",
        )
    return call.emit(Pad(pad), x)


@rule("ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d", "ReplicationPad2d",
      "ReplicationPad3d", "CircularPad1d", "CircularPad2d", "CircularPad3d")  # fmt: skip
def _pad_by_values(call: Call, x: fx.Node, module: nn.Module) -> fx.Node:
    modes = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}
    return _pad(call, x, (), modes[type(module).__name__[:-5]])


@rule("ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d")
def _pad_module(call: Call, x: fx.Node, module: nn.ConstantPad2d) -> fx.Node:
    return _pad(call, x, module.padding, "constant", module.value)
