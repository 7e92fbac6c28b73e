"""Constants are computed while reading."""

from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, helper
from torch import nn

from onnx_examples import differ, integers, write
from rheobase.exchange.onnx import from_onnx


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
