"""The editor of graphs: names, calls and shapes."""

import pytest
import torch
from torch import Tensor, fx, nn

from rheobase.network.graph_edit import (
    find_node,
    find_result,
    free_name,
    insert_call,
    operation_of,
    replace_node,
    run_values,
)
from rheobase.network.operations import Scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(4, 6), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x)


@pytest.fixture
def module() -> fx.GraphModule:
    return fx.symbolic_trace(Model())


def test_free_names() -> None:
    taken = {"a", "a_2", "b_2"}
    assert [free_name(name, taken.__contains__) for name in ("a", "b", "c")] == ["a_3", "b", "c"]


def test_nodes_and_what_they_call(module: fx.GraphModule) -> None:
    relu = find_node(module.graph, "part.1")
    assert find_result(module.graph) is relu
    assert isinstance(operation_of(module, relu), nn.ReLU)
    assert operation_of(module, module.graph.output_node()) is None
    with pytest.raises(KeyError, match=r"part\.7"):
        find_node(module.graph, "part.7")


def test_calls_are_inserted_under_free_names_and_removed(module: fx.GraphModule) -> None:
    x, relu = torch.randn(3, 4), find_node(module.graph, "part.1")
    before = module(x)
    for factor in (2.0, 0.5):
        source = relu.all_input_nodes[0]
        scale = insert_call(module, relu, "part.0_scale", Scale(torch.tensor(factor)), source)
        relu.replace_input_with(source, scale)
    module.recompile()
    assert relu.all_input_nodes[0].target == "part.0_scale_2"
    assert torch.equal(module(x), before)
    replace_node(relu, relu.all_input_nodes[0])
    module.recompile()
    assert (module(x) < 0).any()
    assert "part.1" not in {node.target for node in module.graph.nodes}


def test_values_are_shapes_without_data() -> None:
    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            a, b = x.chunk(2, 1)
            return (a + b).reshape(x.size(0), -1, 1)

    values = run_values(fx.symbolic_trace(Sized()), torch.randn(5, 6))
    found = {node.name: value for node, value in values.items()}
    assert found["size"] == 5
    assert [tuple(part.shape) for part in found["chunk"]] == [(5, 3), (5, 3)]
    assert found["reshape"].shape == (5, 3, 1)
    assert found["reshape"].is_meta
