"""Files that are damaged, or no network of one input and one output, are refused."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from onnx_examples import W, normal, one, write
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


def test_one_input_and_one_output_are_expected(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    path = write(tmp_path / "two.onnx", nodes, outputs=("y", "z"))
    with pytest.raises(ValueError, match=r"2 outputs \(y, z\)"):
        from_onnx(path)
    model = onnx.load(write(path, one("Relu")))
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, (2,)))
    onnx.save(model, path)
    with pytest.raises(ValueError, match=r"2 inputs \(x, other\)"):
        from_onnx(path)


def test_open_sizes_other_than_the_batch_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "open.onnx", one("Relu"), shape=("batch", 3, "height", "width"))
    with pytest.raises(ValueError, match="height, width"):
        from_onnx(path)
