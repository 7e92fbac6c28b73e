"""Graphs of other programs are read where they are unambiguous, and refused otherwise."""

from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import nir
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rheobase import simulate
from rheobase.exchange.nir import NirError, from_nir
from rheobase.exchange.nir.reading import in_order, read_graph
from rheobase.network import IntegrateFire

ONE = np.ones(3, dtype=np.float32)


def fire(*shape: int, **metadata: Any) -> nir.IF:
    ones = np.ones(shape, dtype=np.float32)
    return nir.IF(r=ones, v_threshold=0.5 * ones, metadata=metadata)


def chain(shape: list[int], nodes: dict[str, Any], result: list[int] | None = None) -> nir.NIRGraph:
    """A graph of these nodes one after the other."""
    nodes = {"input": nir.Input(np.array(shape)), **nodes, "output": nir.Output(np.array(result or shape))}
    return nir.NIRGraph(nodes, list(pairwise(nodes)), type_check=False)


def test_files_of_others_are_read_where_they_are_clear(tmp_path: Path) -> None:
    two, none = np.array([2, 2]), np.array([0, 0])
    scale = np.array([0.5, 0.25], dtype=np.float32).reshape(2, 1, 1) * np.ones((2, 2, 2), np.float32)
    layers = {
        "pool": nir.SumPool2d(two, two, none), "scale": nir.Scale(scale),
        "flat": nir.Flatten({"input": np.array([2, 2, 2])}, 0),
        "linear": nir.Linear(np.arange(24, dtype=np.float32).reshape(3, 8) / 8), "fire": fire(3),
    }  # fmt: skip
    nir.write(tmp_path / "net.nir", chain([2, 4, 4], layers, [3]))
    with pytest.raises(NirError, match="reset='subtract' or reset='zero'"):
        from_nir(tmp_path / "net.nir")
    x = torch.rand(3, 2, 4, 4)
    for reset in ("subtract", "zero"):
        snn = from_nir(tmp_path / "net.nir", reset=reset)  # type: ignore[arg-type]
        (neuron,) = snn.neurons.values()
        assert isinstance(neuron, IntegrateFire)
        assert (neuron.reset, neuron.strict, neuron.threshold.item()) == (reset, True, 0.5)
        pooled = F.avg_pool2d(x, 2) * 4 * torch.tensor([0.5, 0.25]).view(2, 1, 1)
        current = F.linear(pooled.flatten(1), torch.arange(24.0).view(3, 8) / 8)
        run = simulate(snn, x, 5)
        v, count = torch.zeros(3, 3), torch.zeros(3, 3)
        for t in range(5):
            v = v + current
            s = (v > 0.5).float()
            v = v * (1 - s) if reset == "zero" else v - 0.5 * s
            count += s
            torch.testing.assert_close(run.logits[t], count / (t + 1))


@pytest.mark.parametrize("given", ["zero", "subtract"])
def test_a_reset_must_agree_with_the_file(given: Literal["zero", "subtract"], tmp_path: Path) -> None:
    graph = chain([2], {"fire": fire(2)})
    graph.metadata["reset"] = "subtract"
    nir.write(tmp_path / "net.nir", graph)
    if given == "subtract":
        assert from_nir(tmp_path / "net.nir", reset=given).sites == ["fire"]
        return
    with pytest.raises(NirError, match=r"'subtract', not 'zero'"):
        from_nir(tmp_path / "net.nir", reset=given)


def test_there_are_two_resets(tmp_path: Path) -> None:
    nir.write(tmp_path / "net.nir", chain([2], {"fire": fire(2)}))
    with pytest.raises(ValueError, match="subtract, zero, got 'soft'"):
        from_nir(tmp_path / "net.nir", reset="soft")  # type: ignore[arg-type]


def test_grouped_convolutions() -> None:
    weight = np.random.default_rng(0).normal(size=(4, 1, 3, 1)).astype(np.float32)
    conv = nir.Conv2d((6, 6), weight, 1, (1, 0), 1, 4, np.zeros(4, np.float32))
    snn = read_graph(chain([4, 6, 6], {"conv": conv, "fire": fire(4, 6, 6)}), "subtract")
    assert simulate(snn, torch.rand(2, 4, 6, 6), 3).logits.shape == (3, 2, 4, 6, 6)


def test_names_that_networks_cannot_have() -> None:
    names = ["meta", "graph", "class", "a-b", "a b"]
    snn = read_graph(chain([3], {name: fire(3) for name in names}), "zero")
    assert snn.sites == ["n_meta", "n_graph", "n_class", "a-b", "a_b"]
    graph = chain([3], {name: fire(3) for name in names})
    graph.edges.append(("meta", "a b"))
    snn = read_graph(graph, "zero")
    assert snn.source("a_b") == "a_b_sum1"


@pytest.mark.parametrize(
    "node", [nir.LIF(ONE, ONE, ONE, ONE), nir.I(ONE), nir.Threshold(ONE), nir.Delay(ONE)], ids=repr
)
def test_nodes_without_an_operation(node: Any) -> None:
    with pytest.raises(NirError, match=f"odd is a {type(node).__name__}"):
        read_graph(chain([3], {"odd": node}), "subtract")


@pytest.mark.parametrize(
    ("key", "value"), [("dt", 2.0), ("threshold_compare", "<"), ("names", "[]"), ("coding", "{")]
)
def test_invalid_metadata(key: str, value: Any) -> None:
    graph = chain([3], {"fire": fire(3)})
    graph.metadata = {"reset": "subtract", key: value}
    with pytest.raises(NirError, match=str(value).replace("[", r"\[").replace("{", "coding")):
        read_graph(graph, None)


def test_unsupported_neurons() -> None:
    for change, fact in (({"r": 2 * ONE}, "resistance"), ({"v_reset": ONE}, "potential other than 0")):
        node = nir.IF(**{"r": ONE, "v_threshold": ONE, **change})
        with pytest.raises(NirError, match=f"fire.*{fact}"):
            read_graph(chain([3], {"fire": node}), "zero")
    with pytest.raises(NirError, match=r"3,. neurons and .5,. starts"):
        read_graph(chain([3], {"fire": fire(3, v_init=np.ones(5))}), "subtract")


def test_cycles_and_missing_inputs() -> None:
    graph = chain([3], {"a": fire(3), "b": fire(3)})
    graph.edges.append(("b", "a"))
    with pytest.raises(NirError, match="cycle through a, b"):
        in_order(graph)
    graph.edges = [("input", "b"), ("a", "b"), ("b", "output")]
    with pytest.raises(NirError, match="a has no input"):
        read_graph(graph, "subtract")
    del graph.nodes["output"]
    graph.edges = [("input", "a")]
    with pytest.raises(NirError, match="0 nodes of type Output"):
        read_graph(graph, "subtract")
