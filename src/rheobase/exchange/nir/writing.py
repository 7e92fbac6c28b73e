"""Translate a rewritten network into a NIR graph."""

import json
import keyword
import re
from typing import Any

import numpy as np
from torch import Tensor, fx, nn

from rheobase.exchange.nir.draft import Draft, NirError, Weighted, start_of
from rheobase.exchange.nir.grid import Grid
from rheobase.exchange.nir.pooling import pair
from rheobase.network import Add, IntegrateFire, Reshape, describe, free_name

COMPARE = {False: ">=", True: ">"}


def write_graph(draft: Draft, grid: Grid | None) -> tuple[Any, dict[str, str]]:
    """The NIR graph of a network, and the names of its sites there."""
    import nir

    names = _names(draft)
    nodes: dict[str, Any] = {"input": nir.Input(np.array(draft.snn.input_shape))}
    for node in draft.calls:
        operation = draft.operation(node)
        if not isinstance(operation, Add):
            nodes[names[node]] = _nir_node(operation, draft.input_shape(node))
    nodes["output"] = nir.Output(np.array(draft.input_shape(draft.output)))
    graph = nir.NIRGraph(nodes, _edges(draft, names), metadata=_metadata(draft, names, grid))
    return graph, {str(n.target): names[n] for n in draft.calls if n.target in draft.snn.sites}


def _edges(draft: Draft, names: dict[fx.Node, str]) -> list[tuple[str, str]]:
    """The edges of the graph; the sources of a sum become edges to its reader, skips come last."""
    edges: list[tuple[str, str]] = []
    skips: list[tuple[str, str]] = []
    depth: dict[fx.Node, int] = {}

    def weight(node: fx.Node) -> int:
        operation = draft.operation(node)
        return sum(p.numel() for p in operation.parameters()) if operation else 0

    for node in draft.graph.nodes:
        inputs: list[fx.Node] = []
        for source in node.all_input_nodes:
            is_sum = isinstance(draft.operation(source), Add)
            inputs += source.all_input_nodes if is_sum else [source]
        depth[node] = 1 + max((depth[i] for i in inputs), default=0)
        if not inputs or isinstance(draft.operation(node), Add):
            continue
        # Some readers run nodes in the order of edges: the longer or heavier path must come before the skip.
        first, *others = sorted(inputs, key=lambda i: (-depth[i], -weight(i)))
        edges.append((names[first], names[node]))
        skips += [(names[other], names[node]) for other in others]
    return edges + skips


def _names(draft: Draft) -> dict[fx.Node, str]:
    """A different name for each node: an identifier, as some readers need it."""
    names: dict[fx.Node, str] = {}
    taken = {"input", "output"}
    for node in draft.graph.nodes:
        if node.op in ("placeholder", "output"):
            names[node] = "input" if node.op == "placeholder" else "output"
            continue
        word = re.sub(r"\W", "_", str(node.target), flags=re.ASCII)
        word = word if word.isidentifier() and not keyword.iskeyword(word) else f"n{word}"
        free = free_name(word, taken.__contains__)
        taken.add(free)
        names[node] = free
    return names


def _metadata(draft: Draft, names: dict[fx.Node, str], grid: Grid | None) -> dict[str, Any]:
    snn = draft.snn
    strict = {bool(snn.neuron(site).strict) for site in snn.sites}
    if len(strict) > 1:
        raise NirError("some neurons fire at their threshold, some only above it: convert with one rule")
    metadata: dict[str, Any] = {
        "producer": "rheobase",
        "dt": 1.0,
        "reset": "subtract",
        "threshold_compare": COMPARE[strict.pop()],
        "weights": "float32" if grid is None else "grid",
        "coding": json.dumps(describe(snn.coding, "coding", {})),
        "provenance": json.dumps(
            {key: getattr(snn.provenance, key) for key in ("method", "initial", "data")}
        ),
        "sites": json.dumps(snn.sites),
        "names": json.dumps({names[node]: str(node.target) for node in draft.calls}),
    }
    if snn.delay:
        metadata["delay"] = json.dumps(snn.delay)
    if grid is not None:
        exponents = {names[n]: grid.exponents.get(str(n.target)) for n in draft.calls}
        metadata |= {
            "grid_steps": grid.steps,
            "input_exponent": grid.input_exponent,
            "input_low": grid.input_low,
            "input_high": grid.input_high,
            "exponents": json.dumps({name: e for name, e in exponents.items() if e is not None}),
        }
    return metadata


def _nir_node(operation: Any, shape: tuple[int, ...]) -> Any:
    """One node; only neurons have metadata, as NIR up to 1.0.5 accepts it nowhere else."""
    import nir

    if isinstance(operation, nn.Linear):
        return nir.Affine(_array(operation.weight), _bias(operation))
    if isinstance(operation, nn.Conv1d):
        extents = (int(v[0]) for v in (operation.stride, operation.padding, operation.dilation))
        return nir.Conv1d(shape[1], _array(operation.weight), *extents, 1, _bias(operation))
    if isinstance(operation, nn.Conv2d):
        sides = (tuple(map(int, v)) for v in (operation.stride, operation.padding, operation.dilation))
        return nir.Conv2d(shape[1:], _array(operation.weight), *sides, 1, _bias(operation))
    if isinstance(operation, nn.AvgPool2d):
        windows = (operation.kernel_size, operation.stride, operation.padding)
        return nir.AvgPool2d(*(np.array(pair(v)) for v in windows))
    if isinstance(operation, Reshape):
        return nir.Flatten({"input": np.array(shape)}, 0, -1)
    assert isinstance(operation, IntegrateFire)
    metadata = {"v_init": _array(start_of(operation, shape)), "reset": "subtract"}
    ones = np.ones(shape, dtype=np.float32)
    return nir.IF(r=ones, v_threshold=ones.copy(), metadata=metadata)


def _array(values: Tensor) -> np.ndarray:
    return values.detach().numpy().astype(np.float32)


def _bias(layer: Weighted) -> np.ndarray:
    return np.zeros(layer.weight.shape[0], dtype=np.float32) if layer.bias is None else _array(layer.bias)
