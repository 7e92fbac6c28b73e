"""Read the nodes and weights of a file, and check them before building."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import checker, external_data_helper, inliner, numpy_helper
from torch import Tensor

from rheobase.exchange.onnx.errors import SizeError

FLOATS: dict[int, torch.dtype] = {
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
}
"""The supported floating-point types."""

TOKENS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)
"""The types of numbers of tokens."""


@dataclass(frozen=True)
class Part:
    """Which part of a file is the network.

    Attributes:
        input: The value that becomes the input; None for the input of the file.
        shape: The sizes of one sample, which the file may leave open.
        outputs: The values that become the outputs; none for the outputs of the file.
        constants: Other inputs of the file that get a constant.
    """

    input: str | None = None
    shape: tuple[int, ...] | None = None
    outputs: tuple[str, ...] = ()
    constants: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Source:
    """The network in a file.

    Attributes:
        nodes: The nodes that the outputs depend on, in order.
        constants: Weights and other constants by name.
        input: The name of the input.
        batch: The batch size that the file fixes; None if it is open.
        shape: The shape of one sample.
        dtype: The type of the input.
        outputs: The names of the outputs.
        per_sample: The names of inputs with a constant whose first size, the batch, is open.
        opset: The version of the standard operators.
        types: The types of stored constants by name.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, Tensor]
    input: str
    batch: int | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    outputs: tuple[str, ...]
    per_sample: frozenset[str]
    opset: int
    types: dict[str, int]

    @property
    def precision(self) -> torch.dtype:
        """The type of weights and signals."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


def read(path: Path, part: Part) -> Source:
    """Read and check a part of a file."""
    model = _parse(path)
    _load_external_data(model, path)
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
    outputs = part.outputs or tuple(value.name for value in graph.output)
    _expect_values(graph, [*outputs, *([part.input] if part.input else [])], path)
    given = {name: torch.as_tensor(value) for name, value in (part.constants or {}).items()}
    nodes, used = _needed(graph.node, outputs, {*given, part.input})
    stored = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in stored]
    _expect_inputs(given, inputs, path)
    name = _the_input(part, [value.name for value in inputs if value.name in used], given, path)
    constants = {name: to_tensor(tensor) for name, tensor in stored.items() if name in used} | given
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    types = {name: tensor.data_type for name, tensor in stored.items()}
    attributes = [(node.output[0], node.attribute) for node in nodes if node.op_type == "Constant"]
    types |= {name: attribute.t.data_type for name, found in attributes for attribute in found}
    known = {value.name: value for value in (*graph.value_info, *graph.output, *inputs)}
    size = _shape_and_type(known.get(name), name, part.shape, path)
    per_sample = frozenset(
        value.name for value in inputs if value.name in given and not _sizes(value)[:1] > [0]
    )
    return Source(nodes, constants, name, *size, outputs, per_sample, opset, types)


def to_tensor(stored: onnx.TensorProto) -> Tensor:
    """A stored tensor; half precision becomes single."""
    try:
        array = numpy_helper.to_array(stored)
        tensor = torch.from_numpy(np.array(array if array.dtype.kind in "iufb" else array.astype(np.float32)))
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"the constant {stored.name!r} cannot be read ({error}): the file, or its external weights, "
            "are damaged; copy or export it again"
        ) from error
    return widen(tensor)


def widen(tensor: Tensor) -> Tensor:
    """The tensor; half precision becomes single."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: expected an ONNX file")
    broken = f"{path} is not an ONNX file, or incomplete"
    try:
        model = onnx.load(path, "protobuf", load_external_data=False)
    except DecodeError as error:
        raise ValueError(f"{broken} ({error}): copy or export it again") from error
    if not model.ir_version or not model.graph.node:
        raise ValueError(f"{broken}: it has no nodes; copy or export it again")
    texts = [text for n in model.graph.node for text in (n.name, n.op_type, n.domain, *n.input, *n.output)]
    if not all(isinstance(text, str) for text in [*texts, *(value.name for value in model.graph.input)]):
        raise ValueError(f"{path} is damaged: a name is not text; copy or export it again")
    return model


def _load_external_data(model: onnx.ModelProto, path: Path) -> None:
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (checker.ValidationError, OSError) as error:
        raise FileNotFoundError(
            f"the external weights of {path} cannot be read: {error}. "
            "Put their file next to it, or export into one file (external_data=False)"
        ) from error
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"the external weights of {path} are damaged: {error}. Copy or export them again"
        ) from error


def _expect_values(graph: onnx.GraphProto, names: Sequence[str], path: Path) -> None:
    known = {value.name for value in graph.input} | {name for node in graph.node for name in node.output}
    for name in names:
        if name not in known:
            ends = ", ".join(value.name for value in (*graph.input, *graph.output))
            raise ValueError(
                f"{path} has no value {name!r}: expected the name of an input, an output ({ends}) or a value "
                "between them, as `onnx.load(path).graph.node` lists them"
            )


def _expect_inputs(given: Collection[str], inputs: Sequence[onnx.ValueInfoProto], path: Path) -> None:
    names = [value.name for value in inputs]
    for name in given:
        if name not in names:
            raise ValueError(f"{path} has no input {name!r} for a constant: it has {', '.join(names)}")


def _needed(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], start: Collection[str | None]
) -> tuple[list[onnx.NodeProto], set[str]]:
    """The nodes between some values and the outputs, in order, and the values that they read."""
    used, kept = set(outputs), []
    for node in reversed(nodes):
        if any(name in used and name not in start for name in node.output):
            used.update(node.input)
            kept.append(node)
    return kept[::-1], used


def _the_input(part: Part, needed: Sequence[str], given: Collection[str], path: Path) -> str:
    others = [name for name in needed if name not in given and name != part.input]
    remedy = "give constants, as in constants={{{!r}: torch.zeros(1)}}, or start at another value by input="
    if part.input is None and len(others) != 1:
        found = ", ".join(needed) or "none"
        remedy = remedy.format(others[-1]) if others else "export the file again"
        raise ValueError(f"{path} has {len(needed)} inputs ({found}), expected one: {remedy}")
    if part.input is not None and others:
        raise ValueError(
            f"{path} reads its inputs {', '.join(others)} besides {part.input!r}: "
            + remedy.format(others[-1])
        )
    return part.input or others[0]


def _sizes(value: onnx.ValueInfoProto) -> list[int]:
    """The shape of a value; 0 where a size is open."""
    return [max(dim.dim_value, 0) for dim in value.type.tensor_type.shape.dim]  # -1 in some files


def _shape_and_type(
    value: onnx.ValueInfoProto | None, name: str, shape: tuple[int, ...] | None, path: Path
) -> tuple[int | None, tuple[int, ...], torch.dtype]:
    """The batch size that the file fixes, the shape of a sample and the type of the input."""
    if value is None:  # between other values, where files need no shapes
        if shape is None:
            raise ValueError(f"{path} has no shape of {name!r}: pass that of one sample by shape=")
        return None, shape, torch.float32
    tensor = value.type.tensor_type
    if tensor.elem_type not in FLOATS and tensor.elem_type not in TOKENS:
        found = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise ValueError(
            f"the input {name!r} of {path} has type {found}, expected floating point, or INT64 for tokens"
        )
    sizes = _sizes(value)
    shown = ", ".join(str(d.dim_param or d.dim_value or "?") for d in tensor.shape.dim)
    if shape is not None:
        fits = len(shape) == len(sizes) - 1
        if not fits or any(size not in (0, n) for n, size in zip(shape, sizes[1:], strict=True)):
            raise SizeError(
                f"the input {name!r} of {path} has the shape ({shown}), and shape={shape} is not that of one "
                "of its samples: leave out the batch, and keep the sizes that the file fixes"
            )
        sizes[1:] = shape
    if len(sizes) < 2 or min(sizes[1:]) < 1:
        raise ValueError(
            f"the input {name!r} of {path} has the shape ({shown}); all sizes except that of the batch must "
            "be known: pass those of one sample, as in shape=(3, 224, 224)"
        )
    if tensor.elem_type in TOKENS:
        return sizes[0] or None, tuple(sizes[1:]), torch.int64
    return sizes[0] or None, tuple(sizes[1:]), torch.promote_types(FLOATS[tensor.elem_type], torch.float32)
