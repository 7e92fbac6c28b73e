"""ONNX files: the imported network computes what onnxruntime does, and what cannot be read is said so."""

# ruff: noqa: E402

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper

from rheobase import convert, inspect, prepare, simulate
from rheobase.exchange.onnx import from_onnx
from rheobase.training.models.resnet import resnet20
from rheobase.training.models.small import small_residual
from rheobase.training.models.vgg import vgg16

RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


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


# Whole networks, from both of PyTorch's exporters


class Depthwise(nn.Module):
    """Depthwise and pointwise convolutions, ReLU6, a max-pool, a concatenation, a view, a final softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.depth = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.point = nn.Conv2d(16, 8, 1)
        self.head = nn.Linear(16 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.norm(self.stem(x)))
        y = torch.relu(self.point(F.relu6(self.depth(x))))
        x = F.max_pool2d(torch.cat([x * 0.5, y], 1), 2)
        return F.softmax(self.head(x.view(x.shape[0], -1)), 1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "vgg16": (functools.cache(vgg16), 32, 15),
    "resnet20": (resnet20, 32, 19),
    "depthwise": (Depthwise, 16, 3),
}


def export(model: nn.Module, size: int, path: Path, dynamo: bool, open_batch: bool = True) -> Path:
    torch.manual_seed(0)
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):  # fresh statistics would hide a mistake in folding
            part.running_mean.normal_(0, 0.2)
            part.running_var.uniform_(0.5, 2)
    shapes: dict[str, Any] = {}
    if open_batch and dynamo:
        shapes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)}
    elif open_batch:
        shapes = {"dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn of themselves
        torch.onnx.export(
            model.eval(), (torch.zeros(2, 3, size, size),), str(path), dynamo=dynamo, input_names=["x"],
            verbose=False, **shapes,
        )  # fmt: skip
    return path


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_exported_networks_compute_what_onnxruntime_does(name: str, dynamo: bool, tmp_path: Path) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    builder, size, sites = NETWORKS[name]
    path = export(builder(), size, tmp_path / "model.onnx", dynamo)
    x = torch.randn(3, 3, size, size)
    network = from_onnx(path)
    assert differ(path, x, network) < 1e-5
    assert f"{sites} sites" in str(inspect(network, x))


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_fixed_batch_in_the_file_is_no_limit(dynamo: bool, tmp_path: Path) -> None:
    if dynamo:
        pytest.importorskip("onnxscript")
    model = Depthwise()
    path = export(model, 16, tmp_path / "model.onnx", dynamo, open_batch=False)
    x = torch.randn(5, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(from_onnx(path)(x), model(x))


def test_an_imported_network_converts_to_the_same_spikes_as_the_original(tmp_path: Path) -> None:
    model = small_residual(channels=3)
    path = export(model, 8, tmp_path / "model.onnx", dynamo=False)
    x = torch.rand(8, 3, 8, 8)
    logits = [
        simulate(convert(network, "max-norm", [x]), x, 16).logits for network in (model, from_onnx(path))
    ]
    torch.testing.assert_close(*logits)


def test_parts_pads_and_resizing_convert(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Split", ["a", "sizes"], ["b", "c"], axis=1),
        helper.make_node("Concat", ["c", "b"], ["d"], axis=1),
        helper.make_node("Slice", ["d", "one", "five", "axis"], ["e"]),
        helper.make_node("Pad", ["e", "pads"], ["f"]),
        helper.make_node("Resize", ["f", "", "scales"], ["g"]),
        helper.make_node("Transpose", ["g"], ["h"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["h", "w"], ["i"]),
        helper.make_node("Sub", ["i", "shift"], ["j"]),
        helper.make_node("ReduceMean", ["j", "axes"], ["y"], keepdims=0),
    ]
    constants = {
        "sizes": integers(1, 3), "one": integers(1), "five": integers(5), "axis": integers(2),
        "pads": integers(0, 0, 1, 0, 0, 0, 0, 2), "scales": np.array([1, 1, 2, 2], np.float32),
        "w": normal(4, 3), "shift": normal(1), "axes": integers(1, 2),
    }  # fmt: skip
    path = write(tmp_path / "parts.onnx", nodes, constants)
    x = torch.rand(2, 4, 6, 6)
    network = from_onnx(path)
    assert differ(path, x, network) < 1e-5
    snn = convert(network, "max-norm", [x])  # capture compares the captured network with the imported one
    assert simulate(snn, x, 4).logits.shape[1:] == (2, 3)


def test_loading_draws_no_random_numbers_and_gives_a_network_that_can_be_trained(tmp_path: Path) -> None:
    path = export(Depthwise(), 16, tmp_path / "model.onnx", dynamo=False)
    before = torch.get_rng_state()
    network = from_onnx(path)
    assert torch.equal(before, torch.get_rng_state())
    assert not any(part.training for part in network.modules())
    prepared = prepare(network, "opi")
    prepared(torch.rand(2, 3, 16, 16)).square().sum().backward()
    assert all(weight.grad is not None for weight in prepared.parameters())


@pytest.mark.parametrize("around", [torch.device("meta"), torch.inference_mode()])
def test_a_network_is_read_alike_whatever_the_caller_is_in(around: Any, tmp_path: Path) -> None:
    path = export(Depthwise(), 16, tmp_path / "model.onnx", dynamo=False)
    with around:
        network = from_onnx(path)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(network(x), from_onnx(path)(x))
    network(x).sum().backward()


# Single operators


def one(kind: str, *names: str, **attributes: Any) -> list[Any]:
    return [helper.make_node(kind, ["x", *names], ["y"], name=f"the/{kind}", **attributes)]


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


NORM = {"s": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4)) + 0.5}
W, K, LINE = {"w": normal(6, 4, 3, 3)}, {"w": normal(4, 3, 3, 3)}, ("batch", 4, 9)

OPERATORS: dict[str, tuple[Any, ...]] = {
    "conv": (one("Conv", "w", "b", pads=[1, 1, 1, 1], strides=[2, 1]), W | {"b": normal(6)}),
    "conv, uneven": (one("Conv", "w", pads=[0, 1, 2, 1], dilations=[1, 2]), W),
    "conv, same": (one("Conv", "w", auto_pad="SAME_LOWER", strides=[2, 2]), {"w": normal(6, 4, 2, 3)}),
    "conv, groups": (one("Conv", "w", group=4), {"w": normal(8, 1, 3, 3)}),
    "conv 1-D": (one("Conv", "w", pads=[1, 1]), {"w": normal(6, 4, 3)}, LINE),
    "transposed conv": (
        one("ConvTranspose", "w", "b", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1], group=2),
        K | {"b": normal(6)},
    ),
    "gemm": (
        one("Gemm", "w", "c", transB=1, alpha=0.5, beta=2.0), {"w": normal(5, 9), "c": normal(1, 5)}, (2, 9),
    ),
    "gemm, as stored": (one("Gemm", "w"), {"w": normal(9, 5)}, (2, 9)),
    "matmul": (one("MatMul", "w"), {"w": normal(9, 5)}, LINE),
    "batch norm": (one("BatchNormalization", *NORM, epsilon=0.01), NORM),
    "batch norm 1-D": (one("BatchNormalization", *NORM), NORM, LINE),
    "batch norm flat": (one("BatchNormalization", *NORM), NORM, ("batch", 4)),
    "relu": (one("Relu"), {}),
    "clip": (one("Clip", "low", "high"), {"low": np.float32(0), "high": np.float32(0.7)}),
    "clip below": (one("Clip", "low"), {"low": np.float32(0)}),
    "clip, bounds in lists": (
        one("Clip", "low", "high"), {"low": np.zeros(1, np.float32), "high": np.ones(1, np.float32)},
    ),
    "clip, old": (one("Clip", min=0.0, max=6.0), {}, ("batch", 4), 10),
    "clip, as PyTorch writes clamp(min=0)": (one("Max", "zero"), {"zero": np.float32(0)}),
    "average": (one("AveragePool", kernel_shape=[2, 2], strides=[2, 2]), {}),
    "average, padded": (one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}),
    "average, zeros counted": (
        one("AveragePool", kernel_shape=[3, 3], pads=[0, 1, 1, 1], count_include_pad=1), {},
    ),
    "maximum": (one("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], ceil_mode=1), {}),
    "maximum 1-D": (one("MaxPool", kernel_shape=[2]), {}, LINE),
    "global average": (one("GlobalAveragePool"), {}),
    "global maximum": (one("GlobalMaxPool"), {}),
    "mean": (one("ReduceMean", "axes", keepdims=0), {"axes": integers(-1, 2)}),
    "mean over nothing": (one("ReduceMean", "axes", noop_with_empty_axes=1), {"axes": integers()}),
    "mean, old": (one("ReduceMean", axes=[2, 3]), {}, ("batch", 4, 6, 6), 13),
    "add": (one("Add", "c"), {"c": normal(4, 1, 1)}),
    "sum of three": (one("Sum", "x", "x"), {}),
    "add to itself": (one("Add", "x"), {}),
    "constant minus signal": ([helper.make_node("Sub", ["c", "x"], ["y"])], {"c": normal(1)}),
    "signal minus constant": (one("Sub", "c"), {"c": normal(1)}),
    "square": (one("Mul", "x"), {}),
    "divide": (one("Div", "c"), {"c": normal(1)}),
    "flatten": (one("Flatten"), {}),
    "reshape": (one("Reshape", "to"), {"to": integers(0, 2, -1)}),
    "reshape, batch left open": (one("Reshape", "to"), {"to": integers(-1, 144)}),
    "squeeze": (one("Squeeze", "axes"), {"axes": integers(-1, 2)}, ("batch", 4, 1, 1)),
    "unsqueeze": (one("Unsqueeze", "axes"), {"axes": integers(1, -1)}),
    "transpose": (one("Transpose", perm=[0, 2, 3, 1]), {}),
    "concat": (one("Concat", "x", axis=-1), {}),
    "slice": (
        one("Slice", "from", "to", "axes"),
        {"from": integers(1, -4), "to": integers(3, 2**62), "axes": integers(1, 3)},
    ),
    "pad": (one("Pad", "p"), {"p": integers(0, 0, 1, 2, 0, 0, 0, 3)}),
    "pad, some axes": (one("Pad", "p", "", "axes"), {"p": integers(1, 2), "axes": integers(-1)}),
    "dropout": (one("Dropout"), {}),
    "identity": (one("Identity"), {}),
    "softmax": (one("Softmax", axis=1), {}),
    "log softmax": (one("LogSoftmax"), {}, ("batch", 4)),
    "resize": (one("Resize", "", "scales"), {"scales": np.array([1, 1, 2, 3], np.float32)}),
    "resize as PyTorch does": (
        one("Resize", "", "", "to", coordinate_transformation_mode="asymmetric", nearest_mode="floor"),
        {"to": integers(2, 4, 12, 18)}, (2, 4, 6, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPERATORS)
def test_each_operator_computes_what_onnxruntime_does(case: str, tmp_path: Path) -> None:
    nodes, constants, *rest = OPERATORS[case]
    path = write(tmp_path / "one.onnx", nodes, constants, *rest)
    shape = rest[0] if rest else ("batch", 4, 6, 6)
    assert differ(path, torch.randn(2, *shape[1:])) < 1e-5


@pytest.mark.parametrize("sizes", [None, integers(1, 3)])
def test_split_parts_come_in_order(sizes: np.ndarray | None, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x", *(["sizes"] if sizes is not None else [])], ["a", "b"], axis=1),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    path = write(tmp_path / "split.onnx", nodes, {} if sizes is None else {"sizes": sizes}, opset=13)
    assert differ(path, torch.randn(2, 4, 6, 6)) < 1e-5


def test_arithmetic_on_shapes_leaves_no_trace(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["first"]),
        helper.make_node("Slice", ["shape", "one", "end"], ["others"]),
        helper.make_node("Gather", ["others", "zero"], ["channels"]),
        helper.make_node("Mul", ["channels", "area"], ["width"]),
        helper.make_node("Unsqueeze", ["width", "axis"], ["second"]),
        helper.make_node("Concat", ["first", "second"], ["to"], axis=0),
        helper.make_node("Cast", ["to"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["x", "whole"], ["y"]),
    ]
    constants = {
        "zero": np.int64(0), "axis": integers(0), "one": integers(1), "end": integers(4),
        "area": np.int64(36),
    }  # fmt: skip
    path = write(tmp_path / "shapes.onnx", nodes, constants)
    assert differ(path, torch.randn(3, 4, 6, 6)) == 0
    assert [type(part) for part in from_onnx(path).children()] == [nn.Flatten]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_weights_cast_by_a_node_are_read_in_the_precision_of_the_input(kind: int, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["w"], ["weight"], to=kind),
        helper.make_node("Cast", ["x"], ["signal"], to=kind),
        helper.make_node("Conv", ["signal", "weight"], ["result"]),
        helper.make_node("Cast", ["result"], ["y"], to=TensorProto.FLOAT),
    ]
    network = from_onnx(write(tmp_path / "cast.onnx", nodes, W))
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(network(x), F.conv2d(x, torch.from_numpy(W["w"])), rtol=0.05, atol=0.1)


def test_modules_bear_the_names_of_nodes(tmp_path: Path) -> None:
    names = ["/block.0/Relu", "block-0/Relu", "3", "class", "forward", "", "graph", "meta", "code"]
    values = ["x", *(f"v{i}" for i in range(len(names) - 1)), "y"]
    nodes = [
        helper.make_node("Relu", [a], [b], name=n) for a, b, n in zip(values, values[1:], names, strict=False)
    ]
    network = from_onnx(write(tmp_path / "names.onnx", nodes))
    found = [name for name, _ in network.named_children()]
    changed = ["class_2", "forward_2", "Relu_5", "graph_2", "meta_2", "code_2"]
    assert found == ["block_0_Relu", "block_0_Relu_2", "node_3", *changed]
    assert network(torch.ones(1, 4, 6, 6)).shape == (1, 4, 6, 6)
    assert "9 sites" in str(inspect(network, torch.ones(1, 4, 6, 6)))


# What cannot be read


def test_all_unsupported_nodes_are_named_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["a"], name="gate"),
        helper.make_node("Transpose", ["x"], ["b"], name="turn"),
        helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
        helper.make_node("Mystery", ["c"], ["y"], name="own", domain="my.domain"),
    ]
    with pytest.raises(ValueError, match="cannot be made into a network") as caught:
        from_onnx(write(tmp_path / "bad.onnx", nodes))
    message = str(caught.value)
    assert "gate (Sigmoid)" in message
    assert "nn.ReLU" in message
    assert "turn (Transpose): it moves the batch" in message
    assert "own (Mystery)" in message
    assert "sum" not in message


REFUSED: dict[str, tuple[Any, ...]] = {
    "is not a ReLU": (one("Clip", "low"), {"low": np.float32(-1)}),
    "mixes samples": (one("Reshape", "to"), {"to": integers(-1, 12)}),
    "over the batch": (one("ReduceMean", "axes"), {"axes": integers(0)}),
    "along the batch": (one("Concat", "x", axis=0), {}),
    "a step of 2": (
        one("Slice", "from", "to", "axes", "step"),
        {"from": integers(0), "to": integers(6), "axes": integers(2), "step": integers(2)},
    ),
    "larger of a signal and zero": (one("Max", "c"), {"c": np.float32(1)}),
    "BatchNormalization.: it is in training mode": (
        [helper.make_node("BatchNormalization", ["x", *NORM], ["y", "m2", "v2", "m3", "v3"])], NORM,
        ("b", 4, 6, 6), 9,
    ),
    "computes a constant": (
        [helper.make_node("ReduceL2", ["w"], ["norm"]), *one("Div", "norm")], {"w": normal(4)},
    ),
    "part of the batch": (one("Slice", "one", "two"), {"one": integers(0), "two": integers(1)}),
    "with zeros": (one("Pad", "p", "v"), {"p": integers(0, 0, 1, 1, 0, 0, 1, 1), "v": np.float32(1)}),
    "whole pixels": (one("Resize", "", "s", mode="linear"), {"s": np.array([1, 1, 2, 2], np.float32)}),
    "two signals": (one("MatMul", "x"), {}),
    "padding is uneven": (one("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), {}),
    "and so random": (one("Dropout", "r", "t"), {"r": np.float32(0.5), "t": np.array(True)}),
    "AveragePool.: its padding is uneven": (
        one("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1, count_include_pad=1), {},
    ),
    "below zero": (one("BatchNormalization", *NORM), NORM | {"v": -NORM["v"]}),
    "one for each channel": (
        one("BatchNormalization", *NORM, spatial=0), {k: normal(4, 6, 6) for k in NORM}, ("b", 4, 6, 6), 7,
    ),
    "would fill 77,309,411,328 values": (
        [helper.make_node("ConstantOfShape", ["size"], ["w"]), *one("MatMul", "w")],
        {"size": integers(9, 2**33)}, ("batch", 9),
    ),
    "readers disagree": (one("MaxPool", kernel_shape=[2, 2], dilations=[2, 2], auto_pad="SAME_UPPER"), {}),
    "weight is not a constant": (one("Conv", "x"), {}),
    "could not be built on inputs of shapes": (one("Conv", "w"), {"w": normal(6, 5, 3, 3)}),
    "NaN or infinite": (one("Conv", "w"), {"w": np.full((6, 4, 3, 3), np.nan, np.float32)}),
    "does not have the batch first": (one("Add", "c"), {"c": normal(1, 1, 4, 6, 6)}),
    "made by no node": (one("Add", "nowhere"), {}),
    "not on its shape": (one("Gather", "i", axis=1), {"i": integers(1)}),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_would_be_computed_otherwise_is_refused(reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        from_onnx(write(tmp_path / "bad.onnx", *REFUSED[reason]))


def test_files_that_are_no_networks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(FileNotFoundError, match="there is no file"):
        from_onnx(path)
    path = write(path, one("Relu"), shape=("batch", 3, "height", "width"))
    path.write_bytes(path.read_bytes().replace(b"height", b"\xff" * 6))  # no text in UTF-8
    with pytest.raises(ValueError, match="must be fixed"):
        from_onnx(path)
    for content in (b"", b"not a network at all", b"\x00" * 100):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="not an ONNX file"):
            from_onnx(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", *OPERATORS["conv"])
    whole = path.read_bytes()
    for length in range(1, len(whole) - 8, 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError):
            from_onnx(path)


@pytest.mark.parametrize("harm", ["missing", "short", "outside"])
def test_weights_kept_outside_must_be_there(harm: str, tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "model.onnx", *OPERATORS["conv"]))
    path, data = tmp_path / "outside.onnx", tmp_path / "weights.bin"
    onnx.save(model, path, save_as_external_data=True, location=data.name, size_threshold=0)
    assert from_onnx(path)(torch.zeros(1, 4, 6, 6)).shape == (1, 6, 3, 6)
    if harm == "missing":
        data.unlink()
    elif harm == "short":
        data.write_bytes(data.read_bytes()[:100])
    else:
        stored = onnx.load(path, load_external_data=False)
        for tensor in stored.graph.initializer:
            tensor.external_data[0].value = "../weights.bin"
        onnx.save(stored, path)
    with pytest.raises((FileNotFoundError, ValueError), match=r"export|damaged"):
        from_onnx(path)


def test_one_input_and_one_output_are_expected(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    path = write(tmp_path / "two.onnx", nodes, outputs=("y", "z"))
    with pytest.raises(ValueError, match=r"2 outputs \(y, z\), expected one"):
        from_onnx(path)
    model = onnx.load(write(path, one("Relu")))
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, (2,)))
    onnx.save(model, path)
    with pytest.raises(ValueError, match=r"2 inputs \(x, other\), expected one"):
        from_onnx(path)


def test_open_sizes_other_than_the_batch_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "open.onnx", one("Relu"), shape=("batch", 3, "height", "width"))
    with pytest.raises(ValueError, match="height, width"):
        from_onnx(path)
