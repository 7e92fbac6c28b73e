"""Operators that move values, and tables."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import ANY_BATCH, Call, Signal
from rheobase.exchange.onnx.reading import FLOATS
from rheobase.exchange.onnx.windows import torch_order
from rheobase.network import Pad, Reshape

_MOST_RUNS = 64
"""The largest number of slices that a choice of positions becomes."""


def _flatten(call: Call) -> Signal:
    axis, sizes = call.attribute("axis", 1), call.sizes
    axis = axis + len(sizes) if axis < 0 else axis
    return _to_shape(call, [math.prod(sizes[:axis]), math.prod(sizes[axis:])])


def _reshape(call: Call) -> Signal:
    found, sizes = call.sizes, call.numbers("shape", 1)
    if not call.attribute("allowzero", 0):
        sizes = [found[i] if size == 0 else size for i, size in enumerate(sizes)]
    known = math.prod(size for size in sizes if size != -1)
    return _to_shape(call, [math.prod(found) // known if size == -1 else size for size in sizes])


def _squeeze(call: Call) -> Signal:
    sizes, axes = call.sizes, call.numbers("axes", 1)
    if axes is None:
        gone = [i for i, n in enumerate(sizes) if n == 1 and i != call.x.at]
    else:
        gone = [axis % call.rank for axis in axes]
        call.expect_samples_apart(*gone)
    return _to_shape(call, [size for i, size in enumerate(sizes) if i not in gone])


def _unsqueeze(call: Call) -> Signal:
    sizes, axes, at = call.sizes, call.numbers("axes", 1), call.x.at
    for axis in sorted(axis % (len(sizes) + len(axes)) for axis in axes):
        sizes.insert(axis, 1)
        at += axis <= at
    return _to_shape(call, sizes, at)


def _to_shape(call: Call, sizes: list[int], at: int | None = None) -> Signal:
    """The signal in another shape; as many values stay before the samples."""
    x, found, batch = call.x, call.sizes, call.builder.batch
    if math.prod(sizes) != math.prod(found):
        raise Refusal(
            f"{call.shapes} cannot become {call.builder.show(sizes)}", "the file is damaged: export it again"
        )
    before = math.prod(found[: x.at]) * x.outer
    outer = {}
    for i, size in enumerate(sizes):
        ahead = math.prod(sizes[:i])
        if size and not before % ahead and not size % (before // ahead * batch):
            outer[i] = before // ahead
    if not outer:
        raise Refusal(
            f"it mixes samples: {call.builder.show(x.shape)} becomes {call.builder.show(sizes)}",
            "keep dimension 0, the batch",
        )
    # A file with batches of one leaves open which neighbour they join: the next, unless that is the last.
    place = min(outer, key=lambda i: (sizes[i] != batch, i == len(sizes) - 1, outer[i] > 1, i))
    place = place if at is None else at
    if place == 0 and sizes[0] == batch and x.at == 0 and x.shape[0] == ANY_BATCH:
        return call.emit(nn.Flatten() if len(sizes) == 2 <= call.rank else Reshape(sizes[1:]))
    shape = [*sizes[:place], -1, *sizes[place + 1 :]]
    return dataclasses.replace(call.apply(lambda x: x.reshape(shape)), outer=outer[place])


def _transpose(call: Call) -> Signal:
    order = call.attribute("perm", list(range(call.rank))[::-1])
    return call.apply(torch.permute, dims=order)


def _concat(call: Call) -> Signal:
    first = call.signals[0]
    axis = call.attribute("axis") % len(first.shape)
    if axis == first.at:
        raise Refusal("it concatenates along the batch", "concatenate along a later dimension")
    if len(call.signals) < len(call.inputs) and first.at:
        raise Refusal("it concatenates a constant where the batch is not dimension 0", "move it there first")
    fixed = [value for value in call.inputs if isinstance(value, Tensor)]
    if not all(bool((value == value[:1]).all()) for value in fixed):
        raise Refusal("it concatenates a constant that differs between samples", "use one for all samples")
    parts = [value[:1] if isinstance(value, Tensor) else value for value in call.inputs]
    place, constants = (
        next(i for i, value in enumerate(call.inputs) if value is first),
        [isinstance(value, Tensor) for value in call.inputs],
    )

    def join(*parts: Tensor) -> Tensor:
        batch = parts[place].shape[0]
        pairs = zip(parts, constants, strict=True)
        return torch.cat([x.expand(batch, *x.shape[1:]) if same else x for x, same in pairs], axis)

    return call.apply(join, *parts)


def slices(call: Call) -> list[tuple[int, int, int, int]]:
    """The axis, start, end and step of a Slice, for each of its axes."""
    starts, ends = call.numbers("starts", 1), call.numbers("ends", 2)
    axes = call.numbers("axes", 3) or range(len(starts))
    steps = call.numbers("steps", 4) or [1] * len(starts)
    ranks = [axis % call.rank for axis in axes]
    return list(zip(ranks, starts, ends, steps, strict=True))


def _slice(call: Call) -> Signal:
    x = call.x
    for axis, start, end, step in slices(call):
        size = call.sizes[axis]
        first, last, step = slice(start, end, step).indices(size)
        if step == 1 and (first, last) == (0, size):
            continue
        if axis == x.at:
            raise Refusal("it takes a part of the batch", "slice later dimensions")
        x = _take(call, x, axis, range(first, last, step))
    return x


def _take(call: Call, x: Signal, axis: int, places: Sequence[int]) -> Signal:
    """Some positions along a dimension, in any order."""
    before, gaps = [slice(None)] * axis, {b - a for a, b in pairwise(places)}
    if len(places) and len(gaps) < 2 and min(gaps, default=1) > 0:
        index = (*before, slice(places[0], places[-1] + 1, min(gaps, default=1)))
        return call.apply(lambda x: x[index], x)
    breaks = [0, *(i for i, (a, b) in enumerate(pairwise(places), 1) if b != a + 1), len(places)]
    if len(breaks) > _MOST_RUNS:
        return call.apply(torch.index_select, x, dim=axis, index=torch.tensor(places))
    runs = [(*before, slice(places[a], places[b - 1] + 1)) for a, b in pairwise(breaks)]
    return call.apply(lambda x: torch.cat([x[run] for run in runs], axis), x)


def _split(call: Call) -> tuple[Signal, ...]:
    axis = call.axis(0)
    call.expect_samples_apart(axis)
    size, parts = call.x.shape[axis], len(call.node.output)
    largest = -(-size // parts)
    even = [min(largest, size - start) for start in range(0, size, largest)]
    sizes = call.numbers("split", 1) or even
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        _take(call, call.x, axis, range(end - size, end)) for end, size in zip(ends, sizes, strict=True)
    )


def _gather(call: Call) -> Signal:
    axis = call.attribute("axis", 0)
    if isinstance(table := call.inputs[0], Tensor):
        if axis % table.dim() or table.dim() != 2:
            raise Refusal("the input selects parts of a constant", "use it to select the rows of a table")
        return call.apply(F.embedding, call.inputs[1], table)
    places, axis = call.weight(1, "position"), axis % call.rank
    call.expect_samples_apart(axis)
    found = (places.flatten() % call.x.shape[axis]).tolist()
    if not places.dim():
        return call.apply(torch.select, dim=axis, index=found[0])
    taken = _take(call, call.x, axis, found)
    return taken if places.dim() == 1 else call.apply(
        torch.unflatten, taken, dim=axis, sizes=tuple(places.shape)
    )  # fmt: skip


def _gather_elements(call: Call) -> Signal:
    """Values at positions of the same shape, which depend on the tokens of the input."""
    values, places = call.inputs
    axis = call.attribute("axis", 0) % len(call.signals[0].shape)
    if isinstance(values, Tensor) and isinstance(places, Signal) and axis and len(values) == 1:
        return call.apply(lambda v, i: v.expand(len(i), *v.shape[1:]).gather(axis, i), values, places)
    return call.apply(lambda v, i: v.gather(axis, i), values, places)


def _expand(call: Call) -> Signal:
    sizes = call.numbers("shape", 1)
    found = [1] * (len(sizes) - call.rank) + call.sizes
    at = len(found) - call.rank + call.x.at
    sizes = [1] * (len(found) - len(sizes)) + sizes
    kept = [-1 if i == at or size == 1 else size for i, size in enumerate(sizes)]
    if kept == [-1] * call.rank:
        return call.x
    return call.apply(lambda x: x.expand(*kept))


def _tile(call: Call) -> Signal:
    repeats = call.numbers("repeats", 1)
    if repeats[call.x.at] != 1:
        raise Refusal("it repeats the batch", "repeat along other dimensions")
    return call.x if set(repeats) == {1} else call.apply(lambda x: x.repeat(*repeats))


def _pad(call: Call) -> Signal:
    amounts, value = call.numbers("pads", 1), call.numbers("value", 2)
    axes = call.numbers("axes", 3) or range(call.rank)
    before, after = [0] * call.rank, [0] * call.rank
    for i, axis in enumerate(axes):
        before[axis % call.rank], after[axis % call.rank] = amounts[i], amounts[i + len(amounts) // 2]
    if before[0] or after[0]:
        raise Refusal("it pads the batch", "pad later dimensions")
    way = call.attribute("mode", "constant")
    if way == "constant":
        order = torch_order(before[1:], after[1:])
        filling = float(value[0] if isinstance(value, list) else value or 0)
        return call.apply(F.pad, pad=order, value=filling) if filling else call.emit(Pad(order))
    x = call.x
    for axis, amounts in enumerate(zip(before, after, strict=True)):
        if any(amounts):
            places = np.pad(np.arange(x.shape[axis]), amounts, mode=way)
            x = _take(call, x, axis, places.tolist())
    return x


def _resize(call: Call) -> Signal:
    found = call.x.shape
    scales = call.numbers("scales", 2 if call.node.op_type == "Resize" and call.opset >= 11 else 1)
    sizes = call.numbers("sizes", 3)
    scales = scales or [new / old for new, old in zip(sizes, call.sizes, strict=True)]
    exact = [size * scale for size, scale in zip(found[2:], scales[2:], strict=True)]
    to = tuple(map(round, exact))
    mode = call.attribute("mode", "nearest")
    way = call.attribute("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric")
    plain = call.attribute("axes") is None and list(scales[:2]) == [1, 1]
    plain &= all(
        abs(a - b) < 1e-3 for a, b in zip(exact, to, strict=True)
    )  # torch's factor is that of the sizes
    if plain and mode in ("linear", "cubic") and (settings := _interpolation(call, mode, way)):
        return call.apply(F.interpolate, size=to, **settings)
    # For integer factors both of these conventions repeat each value, as torch's nearest does.
    rounding = call.attribute("nearest_mode", "round_prefer_floor" if call.opset >= 11 else "floor")
    halves = way in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") and "round" in rounding
    whole = all(factor == int(factor) for factor in scales)
    floors = (way, rounding) == ("asymmetric", "floor")
    if not plain or mode != "nearest" or not whole or not (halves or floors):
        raise Refusal(
            "torch has no such resizing",
            "use mode nearest with integer factors for height and width, or linear with half pixels",
        )
    return call.emit(nn.Upsample(scale_factor=tuple(map(float, scales[2:]))))


def _interpolation(call: Call, mode: str, way: str) -> dict[str, Any]:
    """The arguments of torch's interpolation that computes the same; none if there are none."""
    same = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
    places = call.rank - 2
    names = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("", "bicubic", "")}
    usual = not call.attribute("antialias", 0) and not call.attribute("exclude_outside", 0)
    if mode == "cubic" and (call.attribute("cubic_coeff_a", -0.75) != -0.75 or places != 2):
        return {}
    if way not in same or not usual or not 1 <= places <= 3:
        return {}
    return {"mode": names[mode][places - 1], "align_corners": same[way]}


def _depth_to_space(call: Call) -> Signal:
    size = call.attribute("blocksize")
    if call.attribute("mode", "DCR") == "CRD":
        return call.emit(nn.PixelShuffle(size))
    _, channels, height, width = call.x.shape
    shape = (-1, size, size, channels // size**2, height, width)
    return call.apply(
        lambda x: x.reshape(shape).permute(0, 3, 4, 1, 5, 2).reshape(
            -1, channels // size**2, height * size, width * size
        )
    )  # fmt: skip


def _space_to_depth(call: Call) -> Signal:
    size = call.attribute("blocksize")
    _, channels, height, width = call.x.shape
    shape = (-1, channels, height // size, size, width // size, size)
    return call.apply(
        lambda x: x.reshape(shape).permute(0, 3, 5, 1, 2, 4).reshape(
            -1, channels * size**2, height // size, width // size
        )
    )  # fmt: skip


def _dropout(call: Call) -> Signal:
    training = call.constant(2, "training_mode")
    if training is not None and training.any():
        raise Refusal("it is in training mode", "export the model in evaluation mode")
    return call.x


_WHOLE = {6: torch.int32, 7: torch.int64, 9: torch.bool}


def _cast(call: Call) -> Signal:
    to, kind = call.attribute("to"), call.x.like.dtype
    if to in FLOATS and kind.is_floating_point:
        return call.x
    wanted = call.builder.source.precision if to in FLOATS else _WHOLE.get(to)
    if wanted is None:
        raise Refusal("it casts the signal to integers", "keep floating point")
    return call.x if wanted == kind else call.apply(lambda x: x.to(wanted))


SHAPING: dict[str, Any] = {
    "Cast": _cast,
    "Concat": _concat,
    "DepthToSpace": _depth_to_space,
    "Dropout": _dropout,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Identity": lambda call: call.x,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
}
