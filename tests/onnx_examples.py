"""What the ONNX tests share: files of a few nodes, and a comparison with onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from rheobase.exchange.onnx import from_onnx

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def one(kind: str, *names: str, **attributes: Any) -> list[Any]:
    return [helper.make_node(kind, ["x", *names], ["y"], name=f"the/{kind}", **attributes)]


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def write(
    path: Path,
    nodes: list[Any],
    constants: dict[str, np.ndarray] | None = None,
    shape: tuple[Any, ...] = ("batch", 4, 6, 6),
    opset: int = 18,
    outputs: tuple[str, ...] = ("y",),
) -> Path:
    """A file of these nodes, from the input `x` to the output `y`."""
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        stored,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def differ(path: Path, x: Tensor, network: nn.Module | None = None) -> float:
    """By how much the imported network differs from onnxruntime, relative to the output's scale."""
    network = network or from_onnx(path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])
    with torch.no_grad():
        got = network(x)
    assert got.shape == expected.shape
    return ((got - expected).abs().max() / expected.abs().max()).item()


NORM = {"s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}
W, K, LINE = {"w": normal(6, 4, 3, 3)}, {"w": normal(4, 3, 3, 3)}, ("batch", 4, 9)
