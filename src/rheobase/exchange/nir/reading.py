"""A NIR graph as a network.

The graph is translated into the description that files of this package hold, and built from that: so names,
shapes and numbers are checked as those of any file are.
"""

import json
import keyword
import re
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rheobase.exchange.nir.canonical import NirError
from rheobase.exchange.nir.starts import channelwise
from rheobase.exchange.nir.writing import COMPARE
from rheobase.network import INPUT, RESERVED, SNN, TENSOR, build_network

_REASONS = {
    "LIF": "it leaks, and this package's neurons do not",
    "CubaLIF": "it leaks, and this package's neurons do not",
    "LI": "it leaks, and this package's neurons do not",
    "CubaLI": "it leaks, and this package's neurons do not",
    "I": "an integrator that never fires has no operation here",
    "Threshold": "a threshold without a membrane has no operation here",
    "Delay": "a delay has no operation here",
    "NIRGraph": "a graph within a graph is not read: flatten it first",
}


def read_graph(graph: Any, reset: str | None) -> SNN:
    """The network of a NIR graph.

    Raises:
        NirError: If the graph holds what this package has no operation for, or leaves open how neurons reset.
    """
    try:
        reader = _Reader(graph, reset)
        return build_network(reader.document(), reader.tensors)
    except NirError:
        raise
    # Nodes hold whatever their file says, and numbers may turn out to be texts, or none.
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise NirError(f"the graph is no sound network: {str(error)[:600]}") from error


def in_order(graph: Any) -> list[str]:
    """The names of a graph's nodes, each after those it reads.

    Raises:
        NirError: If there is a cycle.
    """
    sources = _sources(graph)
    try:
        return list(TopologicalSorter(sources).static_order())
    except CycleError as error:
        cycle = ", ".join(sorted(set(error.args[1]))[:4])
        raise NirError(f"the graph has a cycle through {cycle}") from error


def _sources(graph: Any) -> dict[str, list[str]]:
    """What each node reads."""
    sources: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for a, b in graph.edges:
        sources[b].append(a)
    return sources


def text(value: Any) -> str:
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
                "the file does not say how its neurons are reset: NIR up to 1.0.5 means by subtraction, from "
                "1.0.6 on to v_reset. Pass reset='subtract' or reset='zero'"
            )
        self.reset = text(found)
        compare = text(self.metadata.get("threshold_compare", ">"))
        if compare not in COMPARE.values() or float(self.metadata.get("dt", 1.0)) != 1:
            dt = str(self.metadata.get("dt"))[:20]
            raise NirError(f"the file compares by {compare[:20]!r}, with dt = {dt}: expected >= or >, and 1")
        self.strict = compare == ">"
        self.written_names = self._json("names", {})

    def document(self) -> dict[str, Any]:
        """The network's description; its tensors are put aside."""
        output = ""
        self._the("Output")
        read = _sources(self.graph)
        for name in in_order(self.graph):
            node = self.graph.nodes[name]
            sources = [self.names[a] for a in read[name]]
            if type(node).__name__ == "Input":
                self.names[name] = INPUT
                continue
            if not sources:
                raise NirError(f"{name} reads nothing")
            for k in range(1, len(sources)):
                self._add(f"{name}_sum{k}", {"kind": "Add"}, [sources[0], sources[k]])
                sources[0] = f"{name}_sum{k}"
            if type(node).__name__ == "Output":
                output = sources[0]
            else:
                self._translate(name, node, sources[0])
        return {
            "input_shape": [int(n) for n in self._the("Input").input_type["input"]],
            "nodes": self.nodes,
            "output": output,
            "sites": self._ordered(),
            "coding": self._json("coding", {"kind": "ConstantCurrent"}),
            "provenance": {
                "method": "nir", "settings": {}, "initial": "given", **self._json("provenance", {})
            },
        }  # fmt: skip

    def _the(self, kind: str) -> Any:
        found = [node for node in self.graph.nodes.values() if type(node).__name__ == kind]
        if len(found) != 1:
            raise NirError(f"the graph has {len(found)} nodes {kind}, expected one")
        return found[0]

    def _json(self, key: str, default: Any) -> Any:
        try:
            found = json.loads(text(self.metadata[key])) if key in self.metadata else default
        except ValueError as error:
            raise NirError(f"the metadata {key!r} of the graph is no JSON: {error}") from error
        if type(found) is not type(default):
            raise NirError(f"the metadata {key!r} of the graph is {str(found)[:60]}, which cannot be")
        return found

    def _ordered(self) -> list[str]:
        """The sites in the order they were written in, by which samples are drawn."""
        written: list[str] = [str(site) for site in self._json("sites", [])]
        return written if sorted(written) == sorted(self.sites) else self.sites

    def _add(self, name: str, operation: dict[str, Any], inputs: list[str]) -> None:
        self.nodes.append({"name": name, "inputs": inputs, "operation": operation})

    def _translate(self, name: str, node: Any, source: str) -> None:
        kind = type(node).__name__
        self.names[name] = label = _label(str(self.written_names.get(name, name)))
        translations = {
            "Affine": self._affine, "Linear": self._affine, "Conv1d": self._conv, "Conv2d": self._conv,
            "AvgPool2d": self._average, "SumPool2d": self._sum, "Flatten": self._flatten,
            "Scale": self._scale, "IF": self._fire,
        }  # fmt: skip
        translate = translations.get(kind)
        if translate is None:
            raise NirError(f"{name} is a {kind}: {_REASONS.get(kind, 'it has no operation here')}")
        self._add(label, translate(label, node), [source])

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
            "padding": text(padding) if isinstance(padding, (str, bytes)) else _sizes(padding, dims),
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
        shape = [-1] if int(node.start_dim) == 0 and int(node.end_dim) == -1 else None
        if shape is None and node.output_type.get("output") is not None:
            shape = [int(n) for n in node.output_type["output"]]
        if shape is None:
            raise NirError(
                f"{label} flattens dimensions {node.start_dim} to {node.end_dim} of an unknown shape"
            )
        return {"kind": "Reshape", "shape": shape}

    def _scale(self, label: str, node: Any) -> dict[str, Any]:
        values = _compressed(torch.as_tensor(node.scale).float())
        if values.dim() > 1:
            raise NirError(
                f"{label} scales the positions of a channel differently, which has no operation here"
            )
        return {
            "kind": "Scale", "scale": self._tensor(f"{label}.scale", values),
            "shift": self._tensor(f"{label}.shift", torch.zeros_like(values)),
        }  # fmt: skip

    def _fire(self, label: str, node: Any) -> dict[str, Any]:
        self.sites.append(label)
        if (torch.as_tensor(node.r) != 1).any():
            raise NirError(f"{label} has a resistance other than 1, the only one that is read")
        if self.reset == "zero" and (torch.as_tensor(node.v_reset) != 0).any():
            raise NirError(f"{label} is reset to a potential other than 0, the only one that is read")
        threshold = _compressed(torch.as_tensor(node.v_threshold).float())
        start = torch.as_tensor(node.metadata.get("v_init", np.zeros_like(node.v_threshold))).float()
        if start.shape != node.v_threshold.shape:
            raise NirError(f"{label} has {node.v_threshold.shape} neurons and {tuple(start.shape)} starts")
        start = _compressed(start)
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
    """A name as a network's nodes can have it."""
    words = re.sub(r"[^\w.-]|^\.|\.$|\.(?=\.)", "_", name, flags=re.ASCII).split(".")
    return ".".join(f"n_{w}" if keyword.iskeyword(w) or w in RESERVED else w for w in words)


def _compressed(values: Tensor) -> Tensor:
    """Values of a signal as one number or one per channel, where that says the same."""
    if bool((values == values.flatten()[0]).all()):
        return values.flatten()[0]
    per_channel = channelwise(values, values.shape[0])
    return values if per_channel is None else per_channel


def _sizes(values: Any, dims: int) -> list[int]:
    found = [int(n) for n in torch.as_tensor(values).flatten()]
    return found * dims if len(found) == 1 else found
