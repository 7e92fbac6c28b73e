"""Operators that only move values; those that would change the batch are refused."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.calls import Call, Signal
from rheobase.exchange.onnx.constants import slices
from rheobase.exchange.onnx.reading import FLOATS
from rheobase.network import Concat, Pad, Permute, Reshape


class Part(nn.Module):
    """The part of a signal between two positions along one dimension."""

    def __init__(self, dim: int, start: int, stop: int) -> None:
        super().__init__()
        self.index = (*[slice(None)] * dim, slice(start, stop))

    def forward(self, x: Tensor) -> Tensor:
        return x[self.index]


def _flatten(call: Call) -> Signal:
    axis = call.attribute("axis", 1)
    shape = call.x.shape
    axis = axis + len(shape) if axis < 0 else axis
    return _to_shape(call, [math.prod(shape[:axis]), math.prod(shape[axis:])])


def _reshape(call: Call) -> Signal:
    shape, sizes = call.x.shape, call.numbers("shape", 1)
    if not call.attribute("allowzero", 0):
        sizes = [shape[i] if size == 0 else size for i, size in enumerate(sizes)]
    known = math.prod(size for size in sizes if size != -1)
    return _to_shape(call, [math.prod(shape) // known if size == -1 else size for size in sizes])


def _squeeze(call: Call) -> Signal:
    shape, axes = call.x.shape, call.numbers("axes", 1)
    gone = [i for i, n in enumerate(shape) if n == 1] if axes is None else [a % len(shape) for a in axes]
    return _to_shape(call, [size for i, size in enumerate(shape) if i not in gone])


def _unsqueeze(call: Call) -> Signal:
    shape, axes = list(call.x.shape), call.numbers("axes", 1)
    for axis in sorted(axis % (len(shape) + len(axes)) for axis in axes):
        shape.insert(axis, 1)
    return _to_shape(call, shape)


def _to_shape(call: Call, shape: list[int]) -> Signal:
    found = call.x.shape
    if not shape or shape[0] != found[0]:
        raise Refusal("it mixes samples: dimension 0, the batch, changes", "keep dimension 0")
    if math.prod(shape) != math.prod(found):
        raise Refusal(f"{found} cannot be reshaped to {tuple(shape)}", "the file is damaged: export it again")
    return call.emit(nn.Flatten() if len(shape) == 2 else Reshape(shape[1:]))


def _transpose(call: Call) -> Signal:
    order = call.attribute("perm", list(range(len(call.x.shape)))[::-1])
    if order[0] != 0:
        raise Refusal("it moves dimension 0, the batch", "keep dimension 0")
    return call.emit(Permute(order))


def _concat(call: Call) -> Signal:
    if len(call.signals) != len(call.inputs):
        raise Refusal("it concatenates a signal and a constant", "concatenate signals only")
    axis = call.attribute("axis") % len(call.x.shape)
    if axis == 0:
        raise Refusal("it concatenates along the batch", "concatenate along a later dimension")
    return call.emit(Concat(axis), *call.signals)


def _slice(call: Call) -> Signal:
    x = call.x
    for axis, start, end, step in slices(call, len(x.shape)):
        first, last, _ = slice(start, end, step).indices(x.shape[axis])
        if step == 1 and (first, last) == (0, x.shape[axis]):
            continue
        if axis == 0:
            raise Refusal("it takes a part of the batch", "slice later dimensions")
        if step != 1:
            raise Refusal(
                f"its step is {step}",
                "use step 1; for every second pixel a 1×1 convolution with stride 2",
            )
        x = call.emit(Part(axis, first, last), x)
    return x


def _split(call: Call) -> tuple[Signal, ...]:
    axis = call.attribute("axis", 0) % len(call.x.shape)
    if axis == 0:
        raise Refusal("it splits the batch", "split along a later dimension")
    size, parts = call.x.shape[axis], len(call.node.output)
    largest = -(-size // parts)
    even = [min(largest, size - start) for start in range(0, size, largest)]
    sizes = call.numbers("split", 1) or even
    return tuple(call.emit(Part(axis, sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes)))


def _pad(call: Call) -> Signal:
    rank = len(call.x.shape)
    amounts, value = call.numbers("pads", 1), call.numbers("value", 2)
    axes = call.numbers("axes", 3) or range(rank)
    if call.attribute("mode", "constant") != "constant" or value not in (None, 0, [0]):
        raise Refusal("it does not pad with zeros", "pad with zeros")
    before, after = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        before[axis % rank], after[axis % rank] = amounts[i], amounts[i + len(amounts) // 2]
    if before[0] or after[0]:
        raise Refusal("it pads the batch", "pad later dimensions")
    return call.emit(Pad(torch_order(before[1:], after[1:])))


def _resize(call: Call) -> Signal:
    shape = call.x.shape
    scales = call.numbers("scales", 2 if call.node.op_type == "Resize" and call.opset >= 11 else 1)
    sizes = call.numbers("sizes", 3)
    factors = scales or [new / old for new, old in zip(sizes, shape, strict=True)]
    # For integer factors both of these conventions repeat each value, as torch's nearest does.
    way = (
        call.attribute("coordinate_transformation_mode", "half_pixel" if call.opset >= 11 else "asymmetric"),
        call.attribute("nearest_mode", "round_prefer_floor" if call.opset >= 11 else "floor"),
    )
    halves = way[0] in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel") and "round" in way[1]
    whole = all(factor == int(factor) for factor in factors) and list(factors[:2]) == [1, 1]
    nearest = call.attribute("mode", "nearest") == "nearest" and call.attribute("axes") is None
    if not nearest or not whole or not (halves or way == ("asymmetric", "floor")):
        raise Refusal(
            "it does not repeat pixels", "use mode nearest with integer factors for height and width"
        )
    return call.emit(nn.Upsample(scale_factor=tuple(map(float, factors[2:]))))


def _dropout(call: Call) -> Signal:
    training = call.constant(2, "training_mode")
    if training is not None and training.any():
        raise Refusal("it is in training mode", "export the model in evaluation mode")
    return call.x


def _cast(call: Call) -> Signal:
    if call.attribute("to") not in FLOATS:
        raise Refusal("it casts the signal to integers", "keep floating point")
    return call.x


def torch_order(before: list[int], after: list[int]) -> list[int]:
    """Paddings in the order of torch: both sides of the last dimension first."""
    return [amount for pair in reversed(list(zip(before, after, strict=True))) for amount in pair]


SHAPING: dict[str, Callable[[Call], Any]] = {
    "Cast": _cast,
    "Concat": _concat,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Identity": lambda call: call.x,
    "Pad": _pad,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Upsample": _resize,
}
