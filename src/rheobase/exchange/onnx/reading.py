"""Read the nodes and weights of a file, and check them before building."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import checker, external_data_helper, inliner, numpy_helper
from torch import Tensor

ANY_BATCH = 1_000_003
"""Stands for an open batch size: a prime, so that no other dimension is mistaken for it."""

FLOATS: dict[int, torch.dtype] = {
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
}
"""The supported floating-point types."""


@dataclass(frozen=True)
class Source:
    """The content of a file.

    Attributes:
        nodes: The nodes that the output depends on, in order.
        constants: Weights and other constants by name.
        input: The name of the input.
        shape: Its shape, batch first.
        dtype: Its type.
        output: The name of the output.
        opset: The version of the standard operators.
        types: The types of stored constants by name.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, Tensor]
    input: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    output: str
    opset: int
    types: dict[str, int]


def read(path: Path) -> Source:
    """Read and check a file."""
    model = _parse(path)
    _load_external_data(model, path)
    if model.functions:
        model = inliner.inline_local_functions(model)
    graph = model.graph
    known = {tensor.name for tensor in graph.initializer}
    input = _the_one("input", [value for value in graph.input if value.name not in known], path)
    output = _the_one("output", list(graph.output), path)
    nodes = _needed(graph.node, output.name)
    used = {name for node in nodes for name in node.input}
    constants = {t.name: to_tensor(t) for t in graph.initializer if t.name in used}
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    types = {t.name: t.data_type for t in graph.initializer}
    stored = [(node.output[0], node.attribute) for node in nodes if node.op_type == "Constant"]
    types |= {name: attribute.t.data_type for name, attributes in stored for attribute in attributes}
    return Source(nodes, constants, input.name, *_shape_and_type(input, path), output.name, opset, types)


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


def _the_one(what: str, values: list[onnx.ValueInfoProto], path: Path) -> onnx.ValueInfoProto:
    if len(values) != 1:
        names = ", ".join(value.name for value in values) or "none"
        raise ValueError(
            f"{path} has {len(values)} {what}s ({names}), expected one: export a part of the network with "
            f"one {what}, or extract it with onnx.utils.extract_model"
        )
    return values[0]


def _needed(nodes: "list[onnx.NodeProto]", output: str) -> list[onnx.NodeProto]:
    needed, kept = {output}, []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]


def _shape_and_type(value: onnx.ValueInfoProto, path: Path) -> tuple[tuple[int, ...], torch.dtype]:
    tensor = value.type.tensor_type
    if tensor.elem_type not in FLOATS:
        found = onnx.TensorProto.DataType.Name(tensor.elem_type)
        raise ValueError(f"the input {value.name!r} of {path} has type {found}, expected floating point")
    sizes = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in tensor.shape.dim]
    if len(sizes) < 2 or min(sizes[1:]) < 1:
        shown = ", ".join(str(d.dim_param or d.dim_value or "?") for d in tensor.shape.dim)
        raise ValueError(
            f"the input {value.name!r} of {path} has the shape ({shown}); all sizes except that of the "
            "batch must be fixed: export again, or fix them with onnx.tools.update_model_dims"
        )
    dtype = torch.promote_types(FLOATS[tensor.elem_type], torch.float32)
    return (sizes[0] or ANY_BATCH, *sizes[1:]), dtype
