"""Which part of a file is the network; damaged files are refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnx_examples import W, differ, normal, one, write
from rheobase import convert, simulate
from rheobase.exchange.onnx import from_onnx

CONV = one("Conv", "w", "b", pads=[1, 1, 1, 1], strides=[2, 1]), W | {"b": normal(6)}


def test_files_that_are_no_networks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(FileNotFoundError, match=r"model\.onnx"):
        from_onnx(path)
    path = write(path, one("Relu"), shape=("batch", 3, "height", "width"))
    path.write_bytes(path.read_bytes().replace(b"height", b"\xff" * 6))  # not UTF-8
    with pytest.raises(ValueError, match="batch, 3"):
        from_onnx(path)
    for content in (b"", b"not a network at all", b"\x00" * 100):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"model\.onnx is not an ONNX file"):
            from_onnx(path)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "model.onnx", *CONV)
    whole = path.read_bytes()
    for length in range(1, len(whole) - 8, 37):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError):
            from_onnx(path)


@pytest.mark.parametrize("harm", ["missing", "short", "outside"])
def test_weights_kept_outside_must_be_there(harm: str, tmp_path: Path) -> None:
    model = onnx.load(write(tmp_path / "model.onnx", *CONV))
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


def test_several_inputs_are_refused_unless_the_others_have_constants(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "rate"], ["a"]), helper.make_node("Add", ["a", "shift"], ["y"])]
    path = write(tmp_path / "model.onnx", nodes)
    model = onnx.load(path)
    for name in ("rate", "shift", "unused"):
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, (1,)))
    onnx.save(model, path)
    with pytest.raises(ValueError, match=r"3 inputs \(x, rate, shift\).*constants=\{'shift'"):
        from_onnx(path)
    with pytest.raises(ValueError, match=r"no input 'y' for a constant.*x, rate, shift"):
        from_onnx(path, constants={"y": torch.ones(1)})
    x = torch.randn(2, 4, 6, 6)
    network = from_onnx(path, constants={"rate": torch.full((1,), 3.0), "shift": torch.ones(1)})
    assert torch.equal(network(x), x * 3 + 1)


PARTS = [
    helper.make_node("Log", ["x"], ["spectrum"]),
    helper.make_node("Conv", ["spectrum", "w"], ["conv"], name="conv"),
    helper.make_node("Relu", ["conv"], ["relu"], name="relu"),
    helper.make_node("ReduceMean", ["relu"], ["y"], axes=[2, 3], keepdims=0),
    helper.make_node("Cos", ["relu"], ["z"]),
]


def test_a_part_of_a_file_is_read_between_named_values(tmp_path: Path) -> None:
    path = write(tmp_path / "parts.onnx", PARTS, W, outputs=("y", "z"), opset=13)
    x = torch.rand(3, 4, 6, 6) + 0.5
    whole = from_onnx(path)(x)
    assert list(whole) == ["y", "z"]
    features = from_onnx(path, outputs="relu")(x)
    assert torch.equal(from_onnx(path, outputs=("relu", "y"))(x)["relu"], features)
    assert torch.equal(whole["z"], features.cos())
    with pytest.raises(ValueError, match=r"no shape of 'spectrum'.*shape="):
        from_onnx(path, input="spectrum", outputs="y")
    network = from_onnx(path, input="spectrum", outputs="y", shape=(4, 6, 6))
    assert [name for name, _ in network.named_children()][:2] == ["conv", "relu"]
    assert torch.equal(network(x.log()), whole["y"])
    snn = convert(network, "max-norm", x.log())
    assert list(snn.neurons) == ["relu"]
    for wrong in ({"outputs": "nothing"}, {"input": "nothing"}):
        with pytest.raises(ValueError, match=r"no value 'nothing'.*\(x, y, z\)"):
            from_onnx(path, **wrong)
    with pytest.raises(ValueError, match="'spectrum' does not depend on the input"):
        from_onnx(path, input="relu", outputs="spectrum", shape=(6, 4, 4), constants={"x": x[:1]})


def test_several_outputs_are_converted_as_those_of_a_dictionary(tmp_path: Path) -> None:
    heads = [helper.make_node("ReduceMax", ["relu"], ["z"], axes=[2, 3], keepdims=0)]
    path = write(tmp_path / "heads.onnx", [*PARTS[1:4], *heads], W, outputs=("y", "z"), opset=13)
    model = onnx.load(path)
    model.graph.node[0].input[0] = "x"
    onnx.save(model, path)
    x = torch.randn(8, 4, 6, 6)
    network = from_onnx(path)
    snn = convert(network, "sigma-delta", x, levels=2**14, sizes=15)
    found = snn.split(simulate(snn, x, 60).logits[-1])
    assert list(found) == ["y", "z"]
    for name, value in network(x).items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-3)  # 16,384 levels


def test_sizes_that_the_file_leaves_open_are_given_by_shape(tmp_path: Path) -> None:
    path = write(tmp_path / "open.onnx", one("Relu"), shape=("batch", 3, "height", "width"))
    with pytest.raises(ValueError, match=r"height, width.*shape=\(3, 224, 224\)"):
        from_onnx(path)
    x = torch.randn(2, 3, 5, 7)
    assert torch.equal(from_onnx(path, shape=(3, 5, 7))(x), x.relu())
    for wrong in ((5, 7), (1, 5, 7), (3, 5, 7, 1)):
        with pytest.raises(ValueError, match=r"shape=.* is not that of one of its samples"):
            from_onnx(path, shape=wrong)


def test_tokens_select_the_rows_of_a_table(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["a"]),
        helper.make_node("LayerNormalization", ["a", "w"], ["b"]),
        helper.make_node("Gelu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "m"], ["y"]),
    ]
    constants = {"table": normal(20, 8), "w": normal(8), "m": normal(8, 3)}
    path = write(tmp_path / "tokens.onnx", nodes, constants, ("batch", 5), opset=20)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    network, x = from_onnx(path), torch.randint(0, 20, (32, 5))
    assert differ(path, x, network) < 1e-5
    snn = convert(network, "sigma-delta", x, levels=2**14, sizes=15)
    # Rounding of 16,384 levels.
    torch.testing.assert_close(simulate(snn, x, 60).logits[-1], network(x), rtol=0, atol=1e-3)


def test_positions_that_skip_padding_are_those_of_inputs_without_it(tmp_path: Path) -> None:
    """As RoBERTa counts them; the network refuses inputs with padding."""
    nodes = [
        helper.make_node("Equal", ["x", "padding"], ["empty"]),
        helper.make_node("Not", ["empty"], ["full"]),
        helper.make_node("Cast", ["full"], ["one"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["one", "axis"], ["place"]),
        helper.make_node("Shape", ["x"], ["batch"], end=1),
        helper.make_node("Concat", ["batch", "seven"], ["wide"], axis=0),
        helper.make_node("Expand", ["kinds", "wide"], ["copies"]),
        helper.make_node("GatherElements", ["copies", "place"], ["kind"], axis=1),
        helper.make_node("Gather", ["table", "x"], ["a"]),
        helper.make_node("Gather", ["positions", "place"], ["b"]),
        helper.make_node("Gather", ["types", "kind"], ["c"]),
        helper.make_node("Sum", ["a", "b", "c"], ["d"]),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("MatMul", ["e", "m"], ["y"]),
    ]
    constants = {
        "padding": np.int64(0), "axis": np.int64(1), "kinds": np.array([[0, 0, 1, 1, 0, 0, 1]]),
        "seven": np.array([7]),
        "table": normal(20, 8), "positions": normal(7, 8), "types": normal(2, 8), "m": normal(8, 3),
    }  # fmt: skip
    path = write(tmp_path / "tokens.onnx", nodes, constants, ("batch", 5), opset=18)
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, path)
    network, x = from_onnx(path), torch.randint(1, 20, (16, 5))
    assert differ(path, x, network) < 1e-5
    snn = convert(network, "sigma-delta", x, levels=2**14, sizes=15)
    torch.testing.assert_close(simulate(snn, x, 60).logits[-1], network(x), rtol=0, atol=1e-3)  # rounding
    with pytest.raises(ValueError, match="token 0"):
        simulate(snn, torch.zeros(1, 5, dtype=torch.long), 1)


def test_a_constant_for_an_input_with_an_open_batch_stands_for_all_samples(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "mask"], ["a"]),
        helper.make_node("Shape", ["mask"], ["shape"], end=1),
        helper.make_node("Concat", ["shape", "rest"], ["to"], axis=0),
        helper.make_node("Reshape", ["a", "to"], ["y"]),
    ]
    path = write(tmp_path / "mask.onnx", nodes, {"rest": np.array([24, 6])})
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, ("batch", 4, 1, 1)))
    onnx.save(model, path)
    mask, x = torch.tensor([1.0, 0, 1, 0]).view(1, 4, 1, 1), torch.randn(3, 4, 6, 6)
    assert torch.equal(from_onnx(path, constants={"mask": mask})(x), (x * mask).view(3, 24, 6))
    with pytest.raises(ValueError, match=r"reads its inputs mask besides 'a': .*constants=\{'mask'"):
        from_onnx(path, input="a", shape=(4, 6, 6))
    part = from_onnx(path, input="a", shape=(4, 6, 6), constants={"mask": mask})
    assert torch.equal(part(x), x.view(3, 24, 6))
