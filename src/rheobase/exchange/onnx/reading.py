"""From a file to its nodes and weights, with everything checked that can be before building."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import checker, external_data_helper, inliner, numpy_helper
from torch import Tensor

ANY_BATCH = 1_000_003
"""Stands for a batch size that the file leaves open: a prime, so that no other dimension is taken for it."""

FLOATS: dict[int, torch.dtype] = {
    onnx.TensorProto.DOUBLE: torch.float64,
    onnx.TensorProto.FLOAT: torch.float32,
    onnx.TensorProto.FLOAT16: torch.float16,
    onnx.TensorProto.BFLOAT16: torch.bfloat16,
}
"""The types of floating point that are read."""


@dataclass(frozen=True)
class Source:
    """What a file holds.

    Attributes:
        nodes: The nodes the output depends on, in order.
        constants: Weights and other constants by name.
        input: Name of the one input.
        shape: Its shape, batch first.
        dtype: Its type.
        output: Name of the one output.
        opset: Version of the standard operators.
    """

    nodes: list[onnx.NodeProto]
    constants: dict[str, Tensor]
    input: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    output: str
    opset: int


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
    return Source(nodes, constants, input.name, *_shape_and_type(input, path), output.name, opset)


def to_tensor(stored: onnx.TensorProto) -> Tensor:
    """A stored tensor; half precision becomes single."""
    try:
        array = numpy_helper.to_array(stored)
        tensor = torch.from_numpy(np.array(array if array.dtype.kind in "iufb" else array.astype(np.float32)))
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(
            f"the constant {stored.name!r} cannot be read ({error}): the file, or that of weights beside it, "
            "is damaged or cut short; copy or export it again"
        ) from error
    return widen(tensor)


def widen(tensor: Tensor) -> Tensor:
    """The tensor, in single precision where it was in half."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _parse(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}: expected an ONNX file")
    broken = f"{path} is not an ONNX file, or was cut short"
    try:
        model = onnx.load(path, "protobuf", load_external_data=False)
    except DecodeError as error:
        raise ValueError(f"{broken} ({error}): copy or export it again") from error
    if not model.ir_version or not model.graph.node:
        raise ValueError(f"{broken}: no network was found in it; copy or export it again")
    texts = [text for n in model.graph.node for text in (n.name, n.op_type, n.domain, *n.input, *n.output)]
    if not all(isinstance(text, str) for text in [*texts, *(value.name for value in model.graph.input)]):
        raise ValueError(f"{path} is damaged: a name in it is no text; copy or export it again")
    return model


def _load_external_data(model: onnx.ModelProto, path: Path) -> None:
    try:
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (checker.ValidationError, OSError) as error:
        raise FileNotFoundError(
            f"weights of {path} are kept in another file that cannot be read: {error}. "
            "Put that file beside it, or export into one file (external_data=False)"
        ) from error
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"weights of {path} are kept in another file, which is damaged: {error}. Copy or export it again"
        ) from error


def _the_one(what: str, values: list[onnx.ValueInfoProto], path: Path) -> onnx.ValueInfoProto:
    if len(values) != 1:
        names = ", ".join(value.name for value in values) or "none"
        raise ValueError(
            f"{path} has {len(values)} {what}s ({names}), expected one: export the part of the network that "
            f"has one {what}, or cut it out with onnx.utils.extract_model"
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
        raise ValueError(f"the input {value.name!r} of {path} is of type {found}, expected floating point")
    sizes = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in tensor.shape.dim]
    if len(sizes) < 2 or min(sizes[1:]) < 1:
        shown = ", ".join(str(d.dim_param or d.dim_value or "?") for d in tensor.shape.dim)
        raise ValueError(
            f"the input {value.name!r} of {path} has the shape ({shown}); all but the batch, which comes "
            "first, must be fixed: export again, or fix the sizes with onnx.tools.update_model_dims"
        )
    dtype = torch.promote_types(FLOATS[tensor.elem_type], torch.float32)
    return (sizes[0] or ANY_BATCH, *sizes[1:]), dtype
