"""Modules have the names of nodes, and one error names all unsupported nodes."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import helper

from onnx_examples import write
from rheobase import convert, inspect
from rheobase.exchange.onnx import from_onnx


def test_modules_have_the_names_of_nodes(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["in", "self", "None", "input:0"])
def test_an_input_may_have_any_name(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "named.onnx", [helper.make_node("Relu", ["x"], ["y"], name="relu")])
    model = onnx.load(path)
    model.graph.input[0].name = model.graph.node[0].input[0] = name
    onnx.save(model, path)
    x = torch.randn(2, 4, 6, 6)
    assert torch.equal(from_onnx(path)(x), x.relu())


def test_all_unsupported_nodes_are_named_at_once(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Det", ["x"], ["a"], name="volume"),
        helper.make_node("Concat", ["x", "x"], ["b"], name="stack", axis=0),
        helper.make_node("Add", ["a", "b"], ["c"], name="sum"),
        helper.make_node("Mystery", ["c"], ["y"], name="own", domain="my.domain"),
    ]
    with pytest.raises(ValueError, match="volume") as caught:
        from_onnx(write(tmp_path / "bad.onnx", nodes))
    message = str(caught.value)
    places = ("volume (Det)", "stack (Concat)", "own (Mystery)")
    assert all(name in message for name in (*places, "outputs="))
    assert "sum" not in message


def test_what_cannot_become_spikes_is_refused_by_the_name_of_its_node(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Softplus", ["x"], ["a"], name="/gate"),
        helper.make_node("Cos", ["a"], ["b"], name="/turn"),
        helper.make_node("Relu", ["b"], ["y"], name="/relu"),
    ]
    network = from_onnx(write(tmp_path / "bad.onnx", nodes))
    with pytest.raises(ValueError, match=r"(?s)gate .*turn\.cos .*"):
        convert(network, calibration=torch.rand(4, 4, 6, 6))
