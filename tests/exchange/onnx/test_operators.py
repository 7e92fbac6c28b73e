"""Each operator computes what onnxruntime does, or is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

from onnx_examples import LINE, NORM, K, W, differ, integers, normal, one, write
from rheobase import convert, simulate
from rheobase.exchange.onnx import from_onnx

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
    "sigmoid": (one("Sigmoid"), {}),
    "tanh": (one("Tanh"), {}),
    "hard swish": (one("HardSwish"), {}),
    "hard sigmoid": (one("HardSigmoid", alpha=1 / 6), {}),
    "leaky": (one("LeakyRelu"), {}),
    "leaky, with a slope": (one("LeakyRelu", alpha=0.3), {}),
    "elu": (one("Elu", alpha=0.5), {}),
    "gelu": (one("Gelu"), {}, ("batch", 4), 20),
    "gelu, by tanh": (one("Gelu", approximate="tanh"), {}, ("batch", 4), 20),
    "prelu": (one("PRelu", "s"), {"s": normal(4, 1, 1)}),
    "prelu, with a batch": (one("PRelu", "s"), {"s": normal(1, 4, 1)}, LINE),
    "prelu, one slope": (one("PRelu", "s"), {"s": normal(1)}),
    "prelu, flat": (one("PRelu", "s"), {"s": normal(4)}, ("batch", 4)),
    "average": (one("AveragePool", kernel_shape=[2, 2], strides=[2, 2]), {}),
    "average, padded": (one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1]), {}),
    "average, zeros counted": (
        one("AveragePool", kernel_shape=[3, 3], pads=[0, 1, 1, 1], count_include_pad=1), {},
    ),
    "maximum": (one("MaxPool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], ceil_mode=1), {}),
    "maximum 1-D": (one("MaxPool", kernel_shape=[2]), {}, LINE),
    "global average": (one("GlobalAveragePool"), {}),
    "global maximum": (one("GlobalMaxPool"), {}),
    "largest": (one("ReduceMax", "axes"), {"axes": integers(3, 2)}),
    "largest, flat": (one("ReduceMax", "axes", keepdims=0), {"axes": integers(-1)}, LINE),
    "largest, old": (one("ReduceMax", axes=[-2, -1], keepdims=0), {}, ("batch", 4, 6, 6), 13),
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
    "clip, signed": (one("Clip", "low", "high"), {"low": np.float32(-1), "high": np.float32(0.5)}),
    "hard sigmoid, flat": (one("HardSigmoid"), {}),
    "mish": (one("Mish"), {}),
    "softplus": (one("Softplus"), {}),
    "error function": (one("Erf"), {}),
    "largest of two": (one("Max", "c"), {"c": normal(4, 1, 1)}),
    "smallest of three": (one("Min", "c", "x"), {"c": np.float32(0.3)}),
    "mean of two": (one("Mean", "c"), {"c": normal(6)}),
    "power": (one("Pow", "two"), {"two": np.float32(2)}),
    "choice": ([helper.make_node("Where", ["m", "x", "c"], ["y"])],
               {"m": normal(6) > 0, "c": np.float32(-9)}),
    "largest of each row": (one("ReduceMax", "axes"), {"axes": integers(3)}),
    "smallest of each row": (one("ReduceMin", "axes", keepdims=0), {"axes": integers(2)}),
    "sum": (one("ReduceSum", "axes"), {"axes": integers(1, -1)}),
    "sum, old": (one("ReduceSum", axes=[1]), {}, ("batch", 4), 11),
    "sum of squares": (one("ReduceSumSquare", "axes"), {"axes": integers(-1)}),
    "norm": (one("ReduceL2", "axes"), {"axes": integers(-1)}),
    "over its norm": (one("LpNormalization", axis=1), {}),
    "layer norm": (one("LayerNormalization", "w", "b", epsilon=0.01), {"w": normal(6), "b": normal(6)}),
    "layer norm over two": (one("LayerNormalization", "w", axis=2), {"w": normal(6, 6)}),
    "instance norm": (one("InstanceNormalization", "s", "b"), {"s": NORM["s"], "b": NORM["b"]}),
    "group norm": (
        one("GroupNormalization", "s", "b", num_groups=2), {"s": NORM["s"], "b": NORM["b"]},
        ("batch", 4, 6, 6), 21,
    ),
    "product of signals": (one("MatMul", "x"), {}),
    "matrix on the left": ([helper.make_node("MatMul", ["w", "x"], ["y"])], {"w": normal(5, 6)}),
    "matrices": (one("MatMul", "w"), {"w": normal(4, 6, 3)}),
    "einsum": (one("Einsum", "w", equation="bcij,jk->bcik"), {"w": normal(6, 2)}),
    "batch merged": (one("Reshape", "to"), {"to": integers(-1, 12)}),
    "batch moved": (one("Transpose", perm=[2, 0, 1, 3]), {}),
    "batch moved and merged": (
        [
            helper.make_node("Transpose", ["x"], ["a"], perm=[2, 0, 1, 3]),
            helper.make_node("Reshape", ["a", "rows"], ["b"]),
            helper.make_node("MatMul", ["b", "w"], ["c"]),
            helper.make_node("Reshape", ["c", "back"], ["d"]),
            helper.make_node("Transpose", ["d"], ["y"], perm=[1, 0, 2]),
        ],
        {"rows": integers(-1, 24), "w": normal(24, 5), "back": integers(6, -1, 5)},
    ),
    "running sum": (one("CumSum", "axis"), {"axis": np.int64(-1)}),
    "not a number": (
        [helper.make_node("IsNaN", ["x"], ["n"]), helper.make_node("IsInf", ["x"], ["i"]),
         helper.make_node("Or", ["n", "i"], ["m"]), helper.make_node("Where", ["m", "c", "x"], ["y"])],
        {"c": np.float32(7)},
    ),
    "batch behind a new dimension": (one("Add", "c"), {"c": normal(1, 1, 4, 6, 6)}),
    "flatten behind the batch": (one("Flatten", axis=2), {}),
    "expand": (one("Expand", "to"), {"to": integers(1, 4, 6, 3)}, ("batch", 4, 6, 1)),
    "expand, by a new dimension": (one("Expand", "to"), {"to": integers(2, 1, 1, 1, 1)}),
    "tile": (one("Tile", "n"), {"n": integers(1, 2, 1, 3)}),
    "constant beside": (one("Concat", "c", axis=1), {"c": normal(1, 2, 6, 6)}, (1, 4, 6, 6)),
    "slice with steps": (
        one("Slice", "from", "to", "axes", "step"),
        {"from": integers(1, 5), "to": integers(6, -7), "axes": integers(2, 3), "step": integers(2, -1)},
    ),
    "gather one": (one("Gather", "i", axis=1), {"i": np.int64(-1)}),
    "gather some": (one("Gather", "i", axis=2), {"i": integers(5, 0, 1, 2, 2)}),
    "gather a table of places": (one("Gather", "i", axis=3), {"i": np.array([[0, 1], [4, 3]])}),
    "pad with a number": (one("Pad", "p", "v"), {"p": integers(0, 0, 1, 2, 0, 0, 3, 1), "v": np.float32(2)}),
    "pad by reflection": (one("Pad", "p", mode="reflect"), {"p": integers(0, 1, 0, 2, 0, 0, 3, 1)}),
    "pad by the edge": (one("Pad", "p", mode="edge"), {"p": integers(0, 0, 1, 0, 0, 0, 1, 0)}),
    "depth to space": (one("DepthToSpace", blocksize=2), {}),
    "depth to space, by columns": (one("DepthToSpace", blocksize=2, mode="CRD"), {}),
    "space to depth": (one("SpaceToDepth", blocksize=3), {}),
    "resize, linear": (one("Resize", "", "s", mode="linear"), {"s": np.array([1, 1, 2, 1.5], np.float32)}),
    "resize, corners": (
        one("Resize", "", "", "to", mode="linear", coordinate_transformation_mode="align_corners"),
        {"to": integers(2, 4, 9, 4)}, (2, 4, 6, 6),
    ),
    "resize, cubic": (one("Resize", "", "s", mode="cubic"), {"s": np.array([1, 1, 2, 2], np.float32)}),
    "cast": ([
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BOOL),
        helper.make_node("Cast", ["a"], ["y"], to=TensorProto.FLOAT),
    ], {}),
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
    batch = shape[0] if isinstance(shape[0], int) else 2
    assert differ(path, torch.randn(batch, *shape[1:])) < 1e-5


@pytest.mark.parametrize("sizes", [None, integers(1, 3)])
def test_split_parts_come_in_order(sizes: np.ndarray | None, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Split", ["x", *(["sizes"] if sizes is not None else [])], ["a", "b"], axis=1),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    path = write(tmp_path / "split.onnx", nodes, {} if sizes is None else {"sizes": sizes}, opset=13)
    assert differ(path, torch.randn(2, 4, 6, 6)) < 1e-5


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


def test_gates_and_smooth_activations_convert_by_sigma_delta(tmp_path: Path) -> None:
    """A block of squeeze and excitation, as MobileNetV3 has it."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("HardSwish", ["a"], ["b"], name="swish"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("HardSigmoid", ["c"], ["d"], name="gate", alpha=1 / 6),
        helper.make_node("Mul", ["b", "d"], ["e"]),
        helper.make_node("ReduceMax", ["e"], ["y"], axes=[2, 3], keepdims=0),
    ]
    network, x = from_onnx(write(tmp_path / "gate.onnx", nodes, W, opset=14)), torch.randn(16, 4, 6, 6)
    with pytest.raises(ValueError, match=r"(?s)swish.*gate"):
        convert(network, "max-norm", x)
    snn = convert(network, "sigma-delta", x, levels=255)
    error = (simulate(snn, x, 40).logits[-1] - network(x)).abs().max() / network(x).abs().max()
    assert error < 0.05


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


@pytest.mark.parametrize(("order", "first"), [([0, 1, 2, 3], True), ([1, 0, 2, 3], False)])
def test_constants_repeated_for_each_sample_fit_a_merged_batch(
    order: list[int], first: bool, tmp_path: Path
) -> None:
    """As the masks of windows and the biases of heads are written."""
    sizes = ["batch", "four"] if first else ["four", "batch"]
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one"], ["batch"]),
        helper.make_node("Concat", [*sizes, "six", "six"], ["wide"], axis=0),
        helper.make_node("Expand", ["c", "wide"], ["copies"]),
        helper.make_node("Reshape", ["copies", "flat"], ["rows"]),
        helper.make_node("Transpose", ["x"], ["turned"], perm=order),
        helper.make_node("Reshape", ["turned", "flat"], ["merged"]),
        helper.make_node("Add", ["rows", "merged"], ["y"]),
    ]
    constants = {
        "zero": integers(0), "one": integers(1), "four": integers(4), "six": integers(6),
        "flat": integers(-1, 6, 6), "c": normal(*([1, 4] if first else [4, 1]), 6, 6),
    }  # fmt: skip
    assert differ(write(tmp_path / "rows.onnx", nodes, constants), torch.randn(3, 4, 6, 6)) < 1e-5


REFUSED: dict[str, tuple[Any, ...]] = {
    "mixes samples: .* becomes": (one("Reshape", "to"), {"to": integers(4, -1)}),
    "mixes samples: no single dimension of its result": (
        [helper.make_node("Transpose", ["x"], ["a"]), helper.make_node("MatMul", ["x", "a"], ["y"])],
        {}, ("batch", 4),
    ),
    "ReduceMean.*along the batch": (one("ReduceMean", "axes"), {"axes": integers(0)}),
    "Squeeze.*along the batch": (one("Squeeze", "axes"), {"axes": integers(0)}, (1, 4, 6, 6)),
    "LayerNormalization.*along the batch": (one("LayerNormalization", "w", axis=0), {"w": normal(6)}),
    "concatenates along the batch": (one("Concat", "x", axis=0), {}),
    "differs between samples": (one("Concat", "c", axis=1), {"c": normal(2, 2, 6, 6)}, (2, 4, 6, 6)),
    "torch has no such resizing": (
        one("Resize", "", "s", mode="linear"), {"s": np.array([1, 1, 1.3, 2], np.float32)},
    ),
    "25,000,000 values": (
        [helper.make_node("Pad", ["w", "p"], ["v"]), *one("Mul", "v")],
        {"w": normal(1), "p": integers(0, 24_999_999)}, ("batch", 9),
    ),
    "repeats the batch": (one("Tile", "n"), {"n": integers(2, 1, 1, 1)}),
    "BatchNormalization.*training mode": (
        [helper.make_node("BatchNormalization", ["x", *NORM], ["y", "m2", "v2", "m3", "v3"])], NORM,
        ("b", 4, 6, 6), 9,
    ),
    "RandomNormal": ([helper.make_node("RandomNormal", [], ["w"], shape=[6]), *one("Mul", "w")], {}),
    "LSTM.*recurrent": (one("LSTM", "w", "w", hidden_size=4), {"w": normal(1, 16, 4)}, ("batch", 3, 4)),
    "part of the batch": (one("Slice", "one", "two"), {"one": integers(0), "two": integers(1)}),
    "no such resizing": (one("Resize", "", "s"), {"s": np.array([1, 1, 1.5, 2], np.float32)}),
    "MaxPool.*uneven": (one("MaxPool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]), {}),
    "Dropout.*training mode": (one("Dropout", "r", "t"), {"r": np.float32(0.5), "t": np.array(True)}),
    "AveragePool.*uneven": (
        one("AveragePool", kernel_shape=[2, 2], pads=[0, 0, 1, 1], ceil_mode=1, count_include_pad=1), {},
    ),
    "negative": (one("BatchNormalization", *NORM), NORM | {"v": -NORM["v"]}),
    "one per channel": (
        one("BatchNormalization", *NORM, spatial=0), {k: normal(4, 6, 6) for k in NORM}, ("b", 4, 6, 6), 7,
    ),
    "77,309,411,328 values": (
        [helper.make_node("ConstantOfShape", ["size"], ["w"]), *one("MatMul", "w")],
        {"size": integers(9, 2**33)}, ("batch", 9),
    ),
    "8,589,934,592 values": (
        [helper.make_node("Expand", ["w", "size"], ["v"]), *one("Mul", "v")],
        {"w": normal(1), "size": integers(2**33)}, ("batch", 9),
    ),
    "10,000,000,000 values": (
        [helper.make_node("Range", ["a", "b", "c"], ["v"]), *one("Mul", "v")],
        {"a": np.float32(0), "b": np.float32(1e10), "c": np.float32(1)}, ("batch", 9),
    ),
    "readers disagree": (one("MaxPool", kernel_shape=[2, 2], dilations=[2, 2], auto_pad="SAME_UPPER"), {}),
    "weight is not a constant": (one("Conv", "x"), {}),
    "could not be built on inputs of shapes": (one("Conv", "w"), {"w": normal(6, 5, 3, 3)}),
    "NaN or infinite": (one("Conv", "w"), {"w": np.full((6, 4, 3, 3), np.nan, np.float32)}),
    "nowhere": (one("Add", "nowhere"), {}),
    "slopes have the shape": (one("PRelu", "s"), {"s": normal(4)}, ("b", 4, 6, 4)),
    "parts of a constant": ([helper.make_node("Gather", ["w", "x"], ["y"], axis=1)], {"w": normal(4, 6)}),
    "several dimensions": (one("Softmax", axis=1), {}, ("batch", 4, 6, 6), 11),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_what_torch_would_compute_differently_is_refused(reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=reason):
        from_onnx(write(tmp_path / "bad.onnx", *REFUSED[reason]))
