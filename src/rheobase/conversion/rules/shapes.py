"""Rules for calls that move values or take their mean."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from rheobase.conversion.lowering import Call
from rheobase.conversion.refusals import NeedsExample, Refusal
from rheobase.conversion.rules.registry import rule
from rheobase.network import Mean, Pad, Permute, Reshape, Slice


@rule("flatten", "Flatten")
def _flatten(
    call: Call, x: fx.Node, start_dim: int = 0, end_dim: int = -1, module: nn.Flatten | None = None
) -> fx.Node:
    if module is not None:
        start_dim, end_dim = module.start_dim, module.end_dim
    if start_dim == 1 and end_dim == -1:
        return call.emit(Reshape((-1,)), x)
    return _reshape(call, x)


@rule("reshape", "view", "squeeze", "unsqueeze", "Unflatten", "unflatten")
def _reshape(call: Call, x: fx.Node, *sizes: Any, module: nn.Module | None = None, **_: Any) -> fx.Node:
    if call.lowering.shapes_known:
        if call.shape[0] != call.shape_of(x)[0]:
            raise Refusal(
                f"the reshape from {tuple(call.shape_of(x))} to {tuple(call.shape)} mixes samples",
                "keep dimension 0, the batch, as it is",
            )
        return call.emit(Reshape(call.shape[1:]), x)
    shape = sizes[0] if sizes and isinstance(sizes[0], (tuple, list, torch.Size)) else sizes
    named = call.row.call in ("x.view()", "x.reshape()", "reshape()")
    rest = [s for s in shape[1:] if isinstance(s, int)]
    if not named or not rest or len(rest) != len(shape) - 1 or (shape[0] == -1 and -1 in rest):
        raise NeedsExample(f"the shape of {call.row.call} is not known from the call alone")
    return call.emit(Reshape(rest), x)


@rule("size", "dim", "getattr")
def _size(call: Call, x: fx.Node, *which: Any) -> Any:
    if call.lowering.shapes_known:
        raise Refusal(f"the attribute {which[0]} of a signal has no rule", "use permute or reshape")
    if call.row.call == "getattr()" and which != ("shape",):
        raise NeedsExample(f"the attribute {which[0]} is not known")
    return None  # without an example it can only be the batch size


@rule("getitem")
def _getitem(call: Call, x: Any, index: Any) -> Any:
    if x is None:
        return None
    if isinstance(x, tuple):
        call.row.becomes = "slice"
        call.lowering.memory.view(call.node, call.node.all_input_nodes[0])
        return x[index]
    if not isinstance(index, tuple) and not call.lowering.shapes_known:
        raise NeedsExample("the shape of the indexed signal is not known")
    if not isinstance(index, tuple) or index[:1] != (slice(None),):
        raise Refusal(f"indexing by {index} may mix samples", "keep the batch: index as x[:, ...]")
    extents, whole = call.shape_of(x), x
    for dim, part in enumerate(index):
        if isinstance(part, slice) and part == slice(None):
            continue
        if isinstance(part, int):
            part = slice(part % extents[dim], part % extents[dim] + 1)
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise Refusal(f"indexing by {part} has no spiking form", "use integers, or slices with step 1")
        start, stop, _ = part.indices(extents[dim])
        x = call.emit(Slice(dim, start, stop - start), x)
    if x is whole:
        return call.drop(x, "removed: changes nothing")
    return call.emit(Reshape(call.shape[1:]), x) if any(isinstance(part, int) for part in index) else x


@rule("chunk", "split")
def _chunk(call: Call, x: fx.Node, sizes: Any = None, dim: int = 0, **_: Any) -> tuple[fx.Node, ...]:
    shapes = call.node.meta.get("tensors")
    if not shapes:
        raise NeedsExample("the sizes of the parts are not known")
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


@rule("permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis")
def _permute(call: Call, x: fx.Node, *dims: Any, **named: Any) -> fx.Node:
    numbered = torch.empty(
        tuple(range(len(call.shape))), device="meta"
    )  # the size of a dimension is its number
    order = getattr(numbered, call.function)(*dims, **named).shape
    if order[0] != 0:
        raise Refusal("a permutation that moves the batch has no spiking form", "keep dimension 0 first")
    return call.emit(Permute(order), x)


@rule("mean")
def _mean(call: Call, x: fx.Node, dim: Any = None, keepdim: bool = False, axis: Any = None) -> fx.Node:
    dim = dim if axis is None else axis
    dims = [dim] if isinstance(dim, int) else list(dim or [0])
    if any(d < 0 for d in dims):
        dims = [d % len(call.shape_of(x)) for d in dims]
    if 0 in dims:
        raise Refusal(
            "a mean over the batch mixes samples", "take the mean over later dimensions, such as mean([2, 3])"
        )
    return call.emit(Mean(dims, keepdim), x)


@rule("pad")
def _pad(
    call: Call, x: fx.Node, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> fx.Node:
    if mode != "constant" or (value or 0) != 0:
        raise Refusal(f"padding with {mode} {value} is not zero-padding", "pad with zeros")
    return call.emit(Pad(pad), x)


@rule("ZeroPad1d", "ZeroPad2d", "ZeroPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d")
def _pad_module(call: Call, x: fx.Node, module: nn.ConstantPad2d) -> fx.Node:
    return _pad(call, x, module.padding, "constant", module.value)
