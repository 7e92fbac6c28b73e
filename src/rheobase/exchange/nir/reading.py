"""Translate a NIR graph into a network.

The graph becomes the description that network files hold, and the network is built from that. So names,
shapes and numbers are checked as in any file of this package.
"""

import json
import keyword
import re
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheobase.exchange.nir.draft import NirError, compress
from rheobase.exchange.nir.writing import COMPARE
from rheobase.network import IN_THRESHOLDS, INPUT, RESERVED, SNN, TENSOR, build_network

_LEAKS = "it leaks, and neurons of this package do not"
_REASONS = {
    "LIF": _LEAKS,
    "CubaLIF": _LEAKS,
    "LI": _LEAKS,
    "CubaLI": _LEAKS,
    "NIRGraph": "nested graphs are not read: flatten the graph first",
}


def read_graph(graph: Any, reset: str | None) -> SNN:
    """The network of a NIR graph.

    Raises:
        NirError: The graph has nodes without an operation here, or does not say how neurons reset.
    """
    try:
        reader = _Reader(graph, reset)
        return build_network(reader.document(), reader.tensors)
    except NirError:
        raise
    # A file can hold any values: text in place of numbers, or nothing.
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise NirError(f"the graph is not a valid network: {str(error)[:600]}") from error


def in_order(graph: Any) -> list[str]:
    """The names of the nodes of a graph, each after those it reads.

    Raises:
        NirError: There is a cycle.
    """
    try:
        return list(TopologicalSorter(_sources(graph)).static_order())
    except CycleError as error:
        cycle = ", ".join(sorted(set(error.args[1]))[:4])
        raise NirError(f"the graph has a cycle through {cycle}") from error


def _sources(graph: Any) -> dict[str, list[str]]:
    """For each node those that it reads."""
    sources: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for a, b in graph.edges:
        sources[b].append(a)
    return sources


def _text(value: Any) -> str:
    """A word of the metadata, which may come back as bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


class _Reader:
    def __init__(self, graph: Any, reset: str | None) -> None:
        self.graph = graph
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}
        self.nodes: list[dict[str, Any]] = []
        self.sites: list[str] = []
        self.metadata = graph.metadata if isinstance(graph.metadata, dict) else {}
        found = self.metadata.get("reset", reset)
        if found is None:
            raise NirError(
                "the file does not say how its neurons reset: NIR up to 1.0.5 means by subtraction, from "
                "1.0.6 on to v_reset. Pass reset='subtract' or reset='zero'"
            )
        self.reset = _text(found)
        if reset not in (None, self.reset):
            raise NirError(
                f"the file says that its neurons reset by {self.reset[:20]!r}, not {reset!r}: leave reset out"
            )
        compare = _text(self.metadata.get("threshold_compare", ">"))
        if compare not in COMPARE.values() or float(self.metadata.get("dt", 1.0)) != 1:
            dt = str(self.metadata.get("dt"))[:20]
            raise NirError(f"the file compares by {compare[:20]!r} with dt = {dt}: expected >= or >, and 1")
        self.strict = compare == ">"
        self.written_names = self._json("names", {})

    def document(self) -> dict[str, Any]:
        """The description of the network; its tensors are in `tensors`."""
        output = ""
        self._only("Output")
        sources_of = _sources(self.graph)
        for name in in_order(self.graph):
            node = self.graph.nodes[name]
            kind = type(node).__name__
            if kind == "Input":
                self.names[name] = INPUT
                continue
            sources = [self.names[source] for source in sources_of[name]]
            if not sources:
                raise NirError(f"{name} has no input")
            for k in range(1, len(sources)):
                total = _label(f"{name}_sum{k}")
                self._add(total, {"kind": "Add"}, [sources[0], sources[k]])
                sources[0] = total
            if kind == "Output":
                output = sources[0]
            else:
                self._translate(name, kind, node, sources[0])
        made = {"method": "nir", "settings": {}, "initial": "given", **self._json("provenance", {})}
        return {
            "input_shape": [int(n) for n in self._only("Input").input_type["input"]],
            "nodes": self.nodes,
            "output": output,
            "sites": self._ordered(),
            "coding": self._json("coding", {"kind": "ConstantCurrent"}),
            "provenance": {**made, "found": IN_THRESHOLDS},
            "delay": self._json("delay", 0),
        }

    def _only(self, kind: str) -> Any:
        found = [node for node in self.graph.nodes.values() if type(node).__name__ == kind]
        if len(found) != 1:
            raise NirError(f"the graph has {len(found)} nodes of type {kind}, expected one")
        return found[0]

    def _json(self, key: str, default: Any) -> Any:
        try:
            found = json.loads(_text(self.metadata[key])) if key in self.metadata else default
        except ValueError as error:
            raise NirError(f"the metadata {key!r} of the graph is not JSON: {error}") from error
        if type(found) is not type(default):
            expected = type(default).__name__
            raise NirError(f"the metadata {key!r} of the graph is {str(found)[:60]}, expected a {expected}")
        return found

    def _ordered(self) -> list[str]:
        """The sites in their original order, which decides what random numbers they get."""
        written: list[str] = [str(site) for site in self._json("sites", [])]
        return written if sorted(written) == sorted(self.sites) else self.sites

    def _add(self, name: str, operation: dict[str, Any], inputs: list[str]) -> None:
        self.nodes.append({"name": name, "inputs": inputs, "operation": operation})

    def _translate(self, name: str, kind: str, node: Any, source: str) -> None:
        self.names[name] = label = _label(str(self.written_names.get(name, name)))
        translations = {
            "Affine": self._affine, "Linear": self._affine, "Conv1d": self._conv, "Conv2d": self._conv,
            "AvgPool2d": self._average, "SumPool2d": self._sum, "Flatten": self._flatten,
            "Scale": self._scale, "IF": self._fire,
        }  # fmt: skip
        if kind not in translations:
            raise NirError(f"{name} is a {kind}: {_REASONS.get(kind, 'this package has no such operation')}")
        self._add(label, translations[kind](label, node), [source])

    def _tensor(self, path: str, values: Any) -> str:
        self.tensors[path] = torch.as_tensor(values).float().clone()
        return TENSOR

    def _affine(self, label: str, node: Any) -> dict[str, Any]:
        bias = getattr(node, "bias", None)
        return {
            "kind": "Linear", "in_features": int(node.weight.shape[1]),
            "out_features": int(node.weight.shape[0]),
            "weight": self._tensor(f"{label}.weight", node.weight),
            "bias": None if bias is None else self._tensor(f"{label}.bias", bias),
        }  # fmt: skip

    def _conv(self, label: str, node: Any) -> dict[str, Any]:
        groups = int(node.groups)
        dims = node.weight.ndim - 2
        padding = node.padding
        return {
            "kind": f"Conv{dims}d", "in_channels": int(node.weight.shape[1]) * groups,
            "out_channels": int(node.weight.shape[0]), "kernel_size": _sizes(node.weight.shape[2:], dims),
            "stride": _sizes(node.stride, dims), "dilation": _sizes(node.dilation, dims), "groups": groups,
            "padding": _text(padding) if isinstance(padding, (str, bytes)) else _sizes(padding, dims),
            "padding_mode": "zeros", "weight": self._tensor(f"{label}.weight", node.weight),
            "bias": self._tensor(f"{label}.bias", node.bias),
        }  # fmt: skip

    def _average(self, label: str, node: Any, divisor: int | None = None) -> dict[str, Any]:
        return {
            "kind": "AvgPool2d", "kernel_size": _sizes(node.kernel_size, 2), "stride": _sizes(node.stride, 2),
            "padding": _sizes(node.padding, 2), "ceil_mode": False, "count_include_pad": True,
            "divisor_override": divisor,
        }  # fmt: skip

    def _sum(self, label: str, node: Any) -> dict[str, Any]:
        return self._average(label, node, divisor=1)

    def _flatten(self, label: str, node: Any) -> dict[str, Any]:
        shape = node.output_type.get("output")
        if int(node.start_dim) == 0 and int(node.end_dim) == -1:
            shape = [-1]
        if shape is None:
            raise NirError(
                f"{label} flattens dimensions {node.start_dim} … {node.end_dim} of an unknown shape"
            )
        return {"kind": "Reshape", "shape": [int(n) for n in shape]}

    def _scale(self, label: str, node: Any) -> dict[str, Any]:
        values = compress(torch.as_tensor(node.scale).float())
        if values.dim() > 1:
            raise NirError(f"{label} scales the positions of a channel by different factors, expected one")
        return {
            "kind": "Scale", "scale": self._tensor(f"{label}.scale", values),
            "shift": self._tensor(f"{label}.shift", torch.zeros_like(values)),
        }  # fmt: skip

    def _fire(self, label: str, node: Any) -> dict[str, Any]:
        self.sites.append(label)
        if (torch.as_tensor(node.r) != 1).any():
            raise NirError(f"{label} has a resistance other than 1, expected 1")
        if self.reset == "zero" and (torch.as_tensor(node.v_reset) != 0).any():
            raise NirError(f"{label} resets to a potential other than 0, expected 0")
        threshold = compress(torch.as_tensor(node.v_threshold).float())
        start = torch.as_tensor(node.metadata.get("v_init", np.zeros_like(node.v_threshold))).float()
        if start.shape != node.v_threshold.shape:
            raise NirError(f"{label} has {node.v_threshold.shape} neurons and {tuple(start.shape)} starts")
        start = compress(start)
        if start.dim() == 0 and threshold.dim() == 0 and threshold == 1:
            initial: dict[str, Any] = {"kind": "Constant", "fraction": start.item()}
        else:
            initial = {"kind": "Potential", "values": self._tensor(f"{label}.initial.values", start)}
        return {
            "kind": "IntegrateFire", "threshold": self._tensor(f"{label}.threshold", threshold),
            "amplitude": self._tensor(f"{label}.amplitude", 1.0), "initial": initial, "reset": self.reset,
            "strict": self.strict,
        }  # fmt: skip


def _label(name: str) -> str:
    """A name as a network can have it."""
    words = re.sub(r"[^\w.-]|^\.|\.$|\.(?=\.)", "_", name, flags=re.ASCII).split(".")
    return ".".join(f"n_{w}" if keyword.iskeyword(w) or w in RESERVED else w for w in words)


def _sizes(values: Any, dims: int) -> list[int]:
    found = [int(n) for n in torch.as_tensor(values).flatten()]
    return found * dims if len(found) == 1 else found
