"""A converted network as a JSON description with tensors, and back."""

import dataclasses
import json
import keyword
import math
import re
import unicodedata
from typing import Any

import torch
from torch import Tensor, fx, nn

from rheobase.io import all_finite
from rheobase.network.codings import CODINGS
from rheobase.network.differential import Differential
from rheobase.network.graph_edit import find_result
from rheobase.network.groups import Group
from rheobase.network.neurons import Neuron
from rheobase.network.operations import RESERVED, Reshape, along_channels
from rheobase.network.settings import (
    TENSOR,
    FormatError,
    Kind,
    Place,
    either,
    integer,
    nothing,
    number,
    one_of,
    several,
    text,
)
from rheobase.network.sigma_delta import SigmaDelta
from rheobase.network.snn import SNN, Provenance
from rheobase.network.starts import STARTS, Initial
from rheobase.network.traits import POOLS, TRAITS, traits_of

INPUT = "@input"
"""The name of the network's input; no node can have it."""
MOST_NODES = 20_000
MOST_VALUES = 2**31
"""The largest number of values of one node for one sample."""

_NAME = re.compile(r"[\w-]+(\.[\w-]+){0,31}")
_KEYS = {"input_shape", "nodes", "output", "sites", "coding", "provenance"}
_NOTES = ("found", "starts", "shifts", "data", "outputs")  # optional parts of a provenance
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

_KINDS: dict[type, Kind] = {**TRAITS, **POOLS, **STARTS, **CODINGS}
_operation, _coding = one_of(TRAITS), one_of(CODINGS)
_shape = either(nothing, several(integer(1)))
_DATA = {
    "name": text,
    "root": text,
    "size": integer(1),
    "mean": several(number, 1024),
    "std": several(number, 1024),
    "classes": several(text, 2**16),
}


def describe_network(snn: SNN) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A network as JSON and tensors.

    Raises:
        ValueError: If it has an operation, a neuron, a start or a coding that a file cannot name.
    """
    tensors: dict[str, Tensor] = {}
    nodes, output = [], ""
    for node in snn.module.graph.nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            output = _reference(node.args[0])
            continue
        name = str(node.target)
        operation = describe(snn.module.get_submodule(name), name, tensors)
        nodes.append({"name": name, "inputs": [_reference(i) for i in node.args], "operation": operation})
    document = {
        "input_shape": None if snn.input_shape is None else list(snn.input_shape),
        "nodes": nodes,
        "output": output,
        "sites": list(snn.sites),
        "coding": describe(snn.coding, "coding", tensors),
        "provenance": {
            "method": snn.provenance.method,
            "settings": _plain(snn.provenance.settings),
            "initial": snn.provenance.initial,
            **{name: _plain(noted) for name in _NOTES if (noted := getattr(snn.provenance, name))},
            **({"excluded": snn.provenance.excluded} if snn.provenance.excluded else {}),
        },
    }
    if snn.delay:
        document["delay"] = snn.delay
    return document, tensors


def describe(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """A setting, or an object that a file can name, as JSON; its tensors go into `tensors` by their places.

    Raises:
        ValueError: If it, or something in it, is of a type that a file cannot name.
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach()
        return TENSOR
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [describe(v, path, tensors) for v in value]
    kind = _KINDS.get(type(value))
    if kind is None:
        raise ValueError(
            f"{path} is of type {type(value).__name__}, which a file cannot name: "
            f"it can name {', '.join(sorted(type_.__name__ for type_ in _KINDS))}"
        )
    settings = {name: describe(getattr(value, name), f"{path}.{name}", tensors) for name in kind.settings}
    return {"kind": type(value).__name__, **settings}


def _reference(node: Any) -> str:
    assert isinstance(node, fx.Node)
    return INPUT if node.op == "placeholder" else str(node.target)


def _plain(settings: dict[str, object]) -> dict[str, object]:
    """Settings as JSON; values that JSON cannot hold become text."""
    try:
        return json.loads(json.dumps(settings, allow_nan=False, default=str))  # type: ignore[no-any-return]
    except ValueError:
        return {name: str(value) for name, value in settings.items()}


def build_network(document: Any, tensors: dict[str, Tensor]) -> SNN:
    """The network of a description, which may be hostile.

    Raises:
        FormatError: If it is not a complete and valid network.
    """
    if not isinstance(document, dict) or document.keys() - {"delay"} != _KEYS:
        found = sorted(document) if isinstance(document, dict) else document
        raise FormatError(f"the network is described by {str(found)[:200]}, expected {sorted(_KEYS)}")
    tensors = dict(tensors)
    _check_tensors(tensors)
    input_shape = _shape(document["input_shape"], Place("input_shape", tensors))
    coding = _coding(document["coding"], Place("coding", tensors))
    module = _build_graph(document["nodes"], document["output"], tensors)
    if tensors:
        raise FormatError(f"the tensor {next(iter(tensors))[:200]!r} is not used by the network")
    _check_precision(module)
    sites = _check_sites(document["sites"], module)
    delay = integer(0)(document.get("delay", 0), Place("delay", tensors))
    snn = SNN(module, sites, coding, input_shape, _provenance(document["provenance"]), delay)
    if input_shape is not None:
        _check_shapes(snn, input_shape)
    return snn.eval().requires_grad_(False)


def _check_tensors(tensors: dict[str, Tensor]) -> None:
    for name, values in tensors.items():
        if values.dtype not in _DTYPES:
            raise FormatError(f"the tensor {name[:200]!r} has {values.dtype}, expected floating point")
        if not all_finite(values):
            raise FormatError(f"the tensor {name[:200]!r} has NaN or infinite values")


def _build_graph(nodes: Any, output: Any, tensors: dict[str, Tensor]) -> fx.GraphModule:
    if not isinstance(nodes, list) or not 1 <= len(nodes) <= MOST_NODES:
        raise FormatError(f"the network must have 1 … {MOST_NODES} nodes")
    graph, root = fx.Graph(), nn.Module()
    known = {INPUT: graph.placeholder("x")}
    for node in nodes:
        if not isinstance(node, dict) or node.keys() != {"name", "inputs", "operation"}:
            raise FormatError(f"a node is {str(node)[:80]}, expected name, inputs and operation")
        name = _check_name(node["name"], known)
        operation = _operation(node["operation"], Place(name, tensors))
        inputs = _check_inputs(name, node["inputs"], operation, known)
        _put(root, name, operation)
        known[name] = graph.call_module(name, inputs)
    if not isinstance(output, str) or output not in known:
        raise FormatError(f"the output is {str(output)[:80]!r}, which is not a node")
    graph.output(known[output])
    return fx.GraphModule(root, graph)


def _check_name(name: Any, known: dict[str, fx.Node]) -> str:
    if not isinstance(name, str) or len(name) > 200 or not _is_name(name):
        raise FormatError(
            f"{str(name)[:80]!r} cannot be a node's name: expected at most 200 letters, digits, hyphens, "
            "underscores and points"
        )
    if name in known:
        raise FormatError(f"two nodes are called {name!r}")
    parts = name.split(".")
    if any(keyword.iskeyword(part) for part in parts):
        raise FormatError(f"{name!r} cannot be a node's name: it has a keyword of Python")
    if parts[0] in RESERVED:
        raise _taken(name, parts[0])
    return name


def _is_name(text: str) -> bool:
    # Python normalises identifiers, so a name in another form would not be found again.
    return _NAME.fullmatch(text) is not None and unicodedata.normalize("NFKC", text) == text


def _check_inputs(
    name: str, inputs: Any, operation: nn.Module, known: dict[str, fx.Node]
) -> tuple[fx.Node, ...]:
    least, most = traits_of(operation).inputs
    if not isinstance(inputs, list) or not least <= len(inputs) <= most:
        raise FormatError(f"node {name!r} reads {str(inputs)[:80]}, expected {least} to {most} nodes")
    for i in inputs:
        if not isinstance(i, str) or i not in known:
            raise FormatError(f"node {name!r} reads {str(i)[:80]!r}, which is not a node before it")
    return tuple(known[i] for i in inputs)


def _put(root: nn.Module, name: str, operation: nn.Module) -> None:
    """Add an operation to a module under a name that must be free."""
    holder = root
    *parents, leaf = name.split(".")
    for part in parents:
        if part not in holder._modules:
            _add(holder, part, nn.Module(), name)
        holder = holder.get_submodule(part)
        if type(holder) is not nn.Module:
            raise FormatError(f"node {name!r} is inside another node")
    _add(holder, leaf, operation, name)


def _add(holder: nn.Module, part: str, child: nn.Module, name: str) -> None:
    if hasattr(holder, part):
        raise _taken(name, part)
    holder.add_module(part, child)


def _taken(name: str, part: str) -> FormatError:
    return FormatError(f"{name!r} cannot be a node's name: {part!r} is reserved")


def _check_precision(module: nn.Module) -> None:
    """Refuse mixed precisions, which no operation supports."""
    kinds: dict[torch.dtype, str] = {}
    for name, values in [*module.named_parameters(), *module.named_buffers()]:
        kinds.setdefault(values.dtype, name)
    if len(kinds) > 1:
        found = ", ".join(f"{name[:200]} has {dtype}" for dtype, name in kinds.items())
        raise FormatError(f"the network has mixed precisions: {found}")


def _check_sites(sites: Any, module: fx.GraphModule) -> list[str]:
    calls = [str(n.target) for n in module.graph.nodes if n.op == "call_module"]
    expected = [name for name in calls if isinstance(module.get_submodule(name), Neuron)]
    if not isinstance(sites, list) or not expected or not all(isinstance(s, str) for s in sites):
        raise FormatError("the network has no list of sites or no neurons")
    if sorted(sites) != sorted(expected):
        raise FormatError(f"the sites are {str(sites)[:80]}, but the neurons are {str(expected)[:80]}")
    codes = {module.get_submodule(site).code for site in sites}
    if len(codes) > 1:
        raise FormatError(f"the network mixes neurons of the codes {' and '.join(sorted(map(str, codes)))}")
    return sites


def _provenance(found: Any) -> Provenance:
    optional = {*_NOTES, "excluded"}
    known = isinstance(found, dict) and found.keys() - optional == {"method", "settings", "initial"}
    if not known or not all(isinstance(found.get(key, {}), dict) for key in ("settings", *_NOTES)):
        raise FormatError("the provenance must have a method, settings and an initial potential")
    if not isinstance(found["method"], str) or not isinstance(found["initial"], str):
        raise FormatError("the provenance's method and initial potential must be strings")
    if not all(isinstance(start, str) for start in found.get("starts", {}).values()):
        raise FormatError("the provenance's starts must be strings")
    for values in found.get("shifts", {}).values():
        if not isinstance(values, list) or not values or not all(type(v) in (int, float) for v in values):
            raise FormatError("the provenance's shifts must be lists of numbers")
    for name, shape in found.get("outputs", {}).items():
        several(integer(1))(shape, Place(f"provenance.outputs.{name}", {}))
    if "excluded" in found:
        several(integer(0), 1024)(found["excluded"], Place("provenance.excluded", {}))
    data = found.get("data", {})
    if unknown := data.keys() - _DATA.keys():
        raise FormatError(f"the provenance's data has {str(sorted(unknown))[:80]}, expected {sorted(_DATA)}")
    read = {key: _DATA[key](value, Place(f"provenance.data.{key}", {})) for key, value in data.items()}
    return Provenance(**{**found, "data": read})


def _check_shapes(snn: SNN, input_shape: tuple[int, ...]) -> None:
    """Run a network on an empty batch: this checks shapes, and needs neither time nor memory."""
    signals: dict[fx.Node, Tensor] = {}
    for node in snn.module.graph.nodes:
        try:
            if node.op == "placeholder":
                signals[node] = torch.empty(0, *input_shape, dtype=snn.dtype, device="cpu")
            elif node.op == "call_module":
                inputs = [signals[i] for i in node.args]
                signals[node] = _pass(snn.module.get_submodule(node.target), *inputs)
        except Exception as error:  # torch has many errors for shapes that do not match
            reason = str(error)[:200]
            raise FormatError(f"node {node.target!r} does not match its inputs: {reason}") from error
        samples, *sizes = signals[node].shape if node in signals else [0]
        if samples != 0 or 0 in sizes:  # a size of 0 elsewhere is the batch, moved there
            raise FormatError(f"node {node.target!r} mixes samples")
        if math.prod(sizes) > MOST_VALUES:
            raise FormatError(f"node {node.target!r} would have {sizes} values per sample")
    given, outputs = list(signals[find_result(snn.module.graph)].shape[1:]), snn.provenance.outputs
    if outputs and given != [1, sum(map(math.prod, outputs.values()))]:
        raise FormatError(
            f"the output has {given} values per sample, and the provenance names {str(outputs)[:80]}"
        )


def _pass(operation: nn.Module, *inputs: Tensor) -> Tensor:
    """The output of an operation for an empty batch."""
    shape = (1, *inputs[0].shape[1:])
    if isinstance(operation, Neuron):
        for values in (operation.threshold, operation.amplitude):
            _check_broadcast(values, shape)
        if isinstance(operation, SigmaDelta) and operation.parameter is not None:
            _check_broadcast(operation.parameter, shape)
        if isinstance(operation, Differential) and operation.bound is not None:
            _check_broadcast(operation.bound, shape)
        if isinstance(operation, Group):
            for values in (*operation.sizes, *(() if operation.bias is None else operation.bias)):
                _check_broadcast(values, shape)
        _check_start(operation.initial, shape)
        return inputs[0]
    if isinstance(operation, Reshape):  # torch cannot infer a size of −1 from an empty batch
        one: Tensor = operation(torch.empty(shape, device="meta"))
        return inputs[0].new_empty(0, *one.shape[1:])
    if isinstance(operation, nn.PixelUnshuffle):  # which returns an empty batch unchanged
        channels, *sizes = shape[1:]
        factor = operation.downscale_factor
        if len(sizes) != 2 or any(size % factor for size in sizes):
            raise ValueError(f"its sizes {sizes} are not divisible by {factor}")
        return inputs[0].new_empty(0, channels * factor**2, *(size // factor for size in sizes))
    return operation(*inputs)  # type: ignore[no-any-return]


def _check_start(start: Initial, shape: tuple[int, ...]) -> None:
    for field in dataclasses.fields(start):  # type: ignore[arg-type]
        value = getattr(start, field.name)
        if isinstance(value, Initial):
            _check_start(value, shape)
        elif isinstance(value, Tensor):
            _check_broadcast(value, shape)


def _check_broadcast(values: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse values that are neither one number, nor one per channel, nor one per neuron."""
    sizes = along_channels(values, len(shape)).shape
    if len(sizes) > len(shape) or any(
        a not in (1, b) for a, b in zip(reversed(sizes), reversed(shape), strict=False)
    ):
        raise ValueError(f"{tuple(values.shape)} values for {tuple(shape[1:])} neurons")
