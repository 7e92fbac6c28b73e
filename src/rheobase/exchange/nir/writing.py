"""A rewritten network as a NIR graph."""

import json
import keyword
import re
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from rheobase.exchange.nir.canonical import NirError
from rheobase.exchange.nir.draft import Draft
from rheobase.exchange.nir.grid import Grid
from rheobase.exchange.nir.starts import start_of
from rheobase.network import Add, IntegrateFire, Reshape, describe

COMPARE = {False: ">=", True: ">"}


def write_graph(draft: Draft, grid: Grid | None) -> tuple[Any, dict[str, str]]:
    """The NIR graph of a network, and the names of its sites there."""
    import nir

    names = _names(draft)
    nodes: dict[str, Any] = {"input": nir.Input(np.array(draft.snn.input_shape))}
    for node in draft.calls:
        operation = draft.operation(node)
        if not isinstance(operation, Add):
            nodes[names[node]] = _nir_node(draft, node, operation)
    edges: list[tuple[str, str]] = []
    skips: list[tuple[str, str]] = []
    depth: dict[fx.Node, int] = {}
    for node in draft.graph.nodes:
        inputs = [i for source in node.all_input_nodes for i in _summands(draft, source)]
        depth[node] = 1 + max((depth[i] for i in inputs), default=0)
        if isinstance(draft.operation(node), Add) or node.op == "placeholder":
            continue
        # Some readers run nodes in the order of edges: the longer or heavier path must come before the skip.
        main_first = sorted(inputs, key=lambda i: (-depth[i], -_weight(draft, i)))
        for position, source in enumerate(main_first):
            (skips if position else edges).append((names[source], names[node]))
    nodes["output"] = nir.Output(np.array(draft.shapes[_result(draft)]))
    metadata = _graph_metadata(draft, names, grid)
    graph = nir.NIRGraph(nodes=nodes, edges=edges + skips, metadata=metadata)
    return graph, {
        site: names[node] for node in draft.calls for site in draft.snn.sites if node.target == site
    }


def _result(draft: Draft) -> fx.Node:
    result = next(n for n in draft.graph.nodes if n.op == "output").args[0]
    assert isinstance(result, fx.Node)
    return result


def _summands(draft: Draft, node: fx.Node) -> list[fx.Node]:
    return list(node.all_input_nodes) if isinstance(draft.operation(node), Add) else [node]


def _weight(draft: Draft, node: fx.Node) -> int:
    return sum(p.numel() for p in getattr(draft.operation(node), "parameters", list)())


def _names(draft: Draft) -> dict[fx.Node, str]:
    """Names that every reader takes: words of letters, digits and underscores, different for each node."""
    names: dict[fx.Node, str] = {}
    taken = {"input", "output"}
    for node in draft.graph.nodes:
        if node.op in ("placeholder", "output"):
            names[node] = "input" if node.op == "placeholder" else "output"
            continue
        word = re.sub(r"\W", "_", str(node.target), flags=re.ASCII)
        word = word if word.isidentifier() and not keyword.iskeyword(word) else f"n{word}"
        free, number = word, 1
        while free in taken:
            number += 1
            free = f"{word}_{number}"
        taken.add(free)
        names[node] = free
    return names


def _graph_metadata(draft: Draft, names: dict[fx.Node, str], grid: Grid | None) -> dict[str, Any]:
    snn = draft.snn
    strict = {snn.neuron(site).strict for site in snn.sites}
    if len(strict) > 1:
        raise NirError("some neurons fire at their threshold and some above it only: convert with one rule")
    origin = {"method": snn.provenance.method, "initial": snn.provenance.initial}
    metadata: dict[str, Any] = {
        "producer": "rheobase",
        "dt": 1.0,
        "reset": "subtract",
        "threshold_compare": COMPARE[bool(strict.pop())],
        "weights": "float32" if grid is None else "grid",
        "coding": json.dumps(describe(snn.coding, "coding", {})),
        "provenance": json.dumps(origin),
        "sites": json.dumps(snn.sites),
        "names": json.dumps({names[node]: str(node.target) for node in draft.calls}),
    }
    if grid is not None:
        metadata |= {
            "grid_steps": grid.steps,
            "input_exponent": grid.input_exponent,
            "input_low": grid.input_low,
            "input_high": grid.input_high,
            "exponents": json.dumps(
                {names[n]: e for n in draft.calls if (e := grid.exponents.get(str(n.target))) is not None}
            ),
        }
    return metadata


def _nir_node(draft: Draft, node: fx.Node, operation: Any) -> Any:
    """One node; only neurons have metadata of their own, as NIR up to 1.0.5 takes them nowhere else."""
    import nir

    shape = draft.shapes[_first(node)]
    if isinstance(operation, nn.Linear):
        return nir.Affine(_array(operation.weight), _bias(operation))
    if isinstance(operation, (nn.Conv1d, nn.Conv2d)):
        flat = isinstance(operation, nn.Conv1d)
        kind = nir.Conv1d if flat else nir.Conv2d
        stride, padding, dilation = (
            int(v[0]) if flat else tuple(int(n) for n in v)
            for v in (operation.stride, operation.padding, operation.dilation)
        )
        weight, bias = _array(operation.weight), _bias(operation)
        sizes = shape[1] if flat else shape[1:]
        return kind(sizes, weight, stride, padding, dilation, 1, bias)
    if isinstance(operation, nn.AvgPool2d):
        kernel, step, around = (
            np.broadcast_to(np.array(v), 2).copy()
            for v in (operation.kernel_size, operation.stride, operation.padding)
        )
        return nir.AvgPool2d(kernel, step, around)
    if isinstance(operation, Reshape):
        return nir.Flatten({"input": np.array(shape)}, 0, -1)
    assert isinstance(operation, IntegrateFire)
    metadata = {"v_init": _array(start_of(operation, shape)), "reset": "subtract"}
    ones = np.ones(shape, dtype=np.float32)
    return nir.IF(r=ones, v_threshold=ones.copy(), metadata=metadata)


def _first(node: fx.Node) -> fx.Node:
    first = node.args[0]
    assert isinstance(first, fx.Node)
    return first


def _array(values: Tensor) -> np.ndarray:
    return values.detach().numpy().astype(np.float32)


def _bias(layer: nn.Linear | nn.Conv1d | nn.Conv2d) -> np.ndarray:
    return np.zeros(layer.weight.shape[0], dtype=np.float32) if layer.bias is None else _array(layer.bias)
