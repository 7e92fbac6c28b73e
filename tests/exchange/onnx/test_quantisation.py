"""Quantised files: what onnxruntime computes, and SNNs that compute it without data."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from torch import Tensor, nn

from conftest import count_moved
from onnx_examples import normal, write
from rheobase import convert, simulate
from rheobase.exchange import from_onnx
from rheobase.network import SigmaDelta


class Batches(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, x: Tensor, name: str) -> None:
        self.left = [{name: part.numpy()} for part in x.split(16)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.left.pop() if self.left else None


def runtime(path: Path, x: Tensor) -> Tensor:
    options = onnxruntime.SessionOptions()
    # Its optimiser replaces pairs by integer operators, which round once less.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(None, {session.get_inputs()[0].name: x.numpy()})[0])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return self.last(torch.relu(x + self.second(x)).flatten(1))


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("kind", [QuantType.QUInt8, QuantType.QInt8])
def test_a_network_quantised_by_onnxruntime(kind: QuantType, per_channel: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Block().eval(), torch.randn(128, 3, 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the old exporter, which is faster
        torch.onnx.export(
            model, (x[:1],), tmp_path / "net.onnx", dynamo=False, dynamic_axes={"input": [0]},
            input_names=["input"],
        )  # fmt: skip
    path = tmp_path / "quantised.onnx"
    quantize_static(
        tmp_path / "net.onnx", path, Batches(x, "input"), quant_format=QuantFormat.QDQ,
        activation_type=kind, weight_type=QuantType.QInt8, per_channel=per_channel,
        extra_options={"QuantizeBias": True},
    )  # fmt: skip
    expected, network = runtime(path, x), from_onnx(path)
    assert "QuantizeLinear" in {node.op_type for node in onnx.load(path).graph.node}
    with torch.no_grad():
        assert count_moved(network(x), expected) <= 1
    snn = convert(network, "sigma-delta", example=x[:8])
    assert all(isinstance(n, SigmaDelta) and n.levels >= 127 for n in snn.neurons.values())
    assert count_moved(snn.limit(x), expected) <= 1
    run = simulate(snn, x, 200, at=[200])
    assert count_moved(run.logits[0], snn.limit(x)) == 0


def pair(scale: str = "s", zero: str = "z", **attributes: Any) -> list[Any]:
    return [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", scale, zero], ["q"], name="the/Q", **attributes),
        helper.make_node("DequantizeLinear", ["q", scale, zero], ["b"], **attributes),
        helper.make_node("Conv", ["b", "w"], ["y"]),
    ]


W = {"w": normal(2, 4, 3, 3)}
PAIRS: dict[str, tuple[np.ndarray, np.ndarray]] = {
    "uint8": (np.float32(0.02), np.uint8(0)),
    "int8": (np.float32(0.02), np.int8(0)),
    "uint16": (np.float32(1e-4), np.uint16(0)),
    "a zero point": (np.float32(0.02), np.uint8(30)),
    "by channel": (np.array([0.01, 0.02, 0.03, 0.04], np.float32), np.zeros(4, np.uint8)),
}


@pytest.mark.parametrize("case", PAIRS)
def test_pairs_are_roundings(case: str, tmp_path: Path) -> None:
    scale, zero = PAIRS[case]
    path = write(tmp_path / "pair.onnx", pair(), W | {"s": scale, "z": zero}, opset=21)
    x = torch.randn(20, 4, 6, 6)
    network = from_onnx(path)
    torch.testing.assert_close(network(x), runtime(path, x), atol=1e-5, rtol=0)
    snn = convert(network, "sigma-delta")
    assert torch.equal(snn.neurons["the_Q"].threshold, torch.as_tensor(scale))
    torch.testing.assert_close(snn.limit(x), network(x), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bounds", [(0, 7), (-4, 3)])
def test_integers_are_clipped_to_fewer_bits(bounds: tuple[int, int], tmp_path: Path) -> None:
    """As brevitas writes them: QuantizeLinear, Clip, DequantizeLinear."""
    kind = np.int8 if bounds[0] else np.uint8
    nodes, constants = pair(), W | {"s": np.float32(0.2), "z": kind(0)}
    nodes[0] = helper.make_node("Identity" if bounds[0] else "Relu", ["x"], ["a"])
    nodes[2] = helper.make_node("Clip", ["q", "low", "high"], ["c"], name="the/Clip")
    nodes.insert(3, helper.make_node("DequantizeLinear", ["c", "s", "z"], ["b"]))
    constants |= {"low": kind(bounds[0]), "high": kind(bounds[1])}
    path = write(tmp_path / "clip.onnx", nodes, constants)
    x, network = torch.randn(20, 4, 6, 6), from_onnx(path)
    torch.testing.assert_close(network(x), runtime(path, x), atol=1e-5, rtol=0)
    snn = convert(network, "sigma-delta")
    assert snn.sites == ["the_Clip"]
    torch.testing.assert_close(snn.limit(x), network(x), atol=1e-5, rtol=0)


def test_four_bits_and_quantised_weights(tmp_path: Path) -> None:
    integers = np.random.default_rng(0).integers(-8, 8, (2, 4, 3, 3))
    nodes = pair()
    nodes[-1] = helper.make_node("Conv", ["b", "weight", "bias"], ["y"])
    nodes[:0] = [
        helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["weight"], axis=0),
        helper.make_node("QuantizeLinear", ["bias_values", "bs", "bz"], ["bq"]),
        helper.make_node("DequantizeLinear", ["bq", "bs", "bz"], ["bias"]),
    ]
    stored = [
        helper.make_tensor("z", TensorProto.UINT4, [], [0]),
        helper.make_tensor("wq", TensorProto.INT4, integers.shape, integers.flatten()),
        helper.make_tensor("wz", TensorProto.INT4, [2], [0, 1]),
    ]
    constants = {
        "s": np.float32(0.2), "ws": np.array([0.1, 0.2], np.float32), "bs": np.float32(0.01),
        "bz": np.int8(3), "bias_values": normal(2),
    }  # fmt: skip
    path = write(tmp_path / "four.onnx", nodes, constants, opset=21)
    model = onnx.load(path)
    model.graph.initializer.extend(stored)
    model.ir_version = 10
    onnx.save(model, path)
    x, network = torch.randn(20, 4, 6, 6), from_onnx(path)
    torch.testing.assert_close(network(x), runtime(path, x), atol=1e-5, rtol=0)
    assert convert(network, "sigma-delta").neurons["the_Q"].levels == 15
    assert numpy_helper.to_array(model.graph.initializer[-1]).shape == (2,)


def nodes_after(*names: str) -> list[Any]:
    return [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="the/Q"),
            helper.make_node(names[0], ["q", *names[1:]], ["y"], name="reader")]  # fmt: skip


Z = {"z": np.uint8(0)}
REFUSED: dict[str, tuple[list[Any], dict[str, np.ndarray]]] = {
    "the/Q.*0.0": (pair(), W | Z | {"s": np.float32(0)}),
    "the/Q.*-0.5": (pair(), W | Z | {"s": np.float32(-0.5)}),
    "the/Q.*nan": (pair(), W | Z | {"s": np.float32(np.nan)}),
    "the/Q.*differ": (pair(), W | {"s": np.full(4, 0.1, np.float32), "z": np.array([0, 1, 0, 0], np.uint8)}),
    "the/Q.*channels": (pair(axis=2), W | {"s": np.full(6, 0.1, np.float32), "z": np.zeros(6, np.uint8)}),
    "the/Q.*INT32": (pair(), W | {"s": np.float32(0.1), "z": np.int32(0)}),
    "reader.*integers": (nodes_after("Relu"), Z | {"s": np.float32(0.1)}),
    "reader.*scale": (
        nodes_after("DequantizeLinear", "t", "z"), Z | {"s": np.float32(0.1), "t": np.float32(0.2)},
    ),
    "output 'q' is quantised": (nodes_after("Relu")[:1], Z | {"s": np.float32(0.1)}),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_does_not_fit_is_refused(reason: str, tmp_path: Path) -> None:
    nodes, constants = REFUSED[reason]
    outputs = ("q",) if "output" in reason else ("y",)
    with pytest.raises(ValueError, match=f"(?s){reason}"):
        from_onnx(write(tmp_path / "bad.onnx", nodes, constants, outputs=outputs))
