"""Activations that a model spells out in several calls, such as x * sigmoid(x).

A region is a group of element-wise calls that read one signal and numbers. It is compared with the known
activations by its values, so that its form does not matter, and replaced by one call if they agree.

Hard-sigmoid is not among them: a clip of a scaled signal is the same, and every method has a neuron for it.
"""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rheobase.conversion.lowering import Rule
from rheobase.conversion.memory import in_place, may_write
from rheobase.conversion.nodes import first_argument, function_name
from rheobase.conversion.rules import RULES
from rheobase.conversion.tracing import is_of_torch
from rheobase.conversion.unwrap import has_hooks, is_patched, is_torchs, layer_type

_COMPARISONS = frozenset({"gt", "ge", "lt", "le"})
_FUNCTIONS = _COMPARISONS | frozenset({
    "add", "iadd", "sub", "isub", "subtract", "rsub", "mul", "imul", "multiply", "div", "truediv", "itruediv",
    "divide", "true_divide", "neg", "negative", "pow", "square", "sqrt", "rsqrt", "reciprocal", "abs", "exp",
    "expm1", "log", "log1p", "erf", "erfc", "tanh", "sigmoid", "softplus", "relu", "relu6", "hardtanh",
    "hardsigmoid", "hardswish", "leaky_relu", "elu", "silu", "gelu", "clamp", "clip", "clamp_min",
    "clamp_max", "maximum", "minimum", "fmax", "fmin", "max", "min", "where",
})  # fmt: skip
_MODULES = frozenset({
    "Sigmoid", "Tanh", "Softplus", "ReLU", "ReLU6", "Hardtanh", "Hardsigmoid", "Hardswish", "LeakyReLU",
    "ELU", "SiLU", "GELU",
})  # fmt: skip
_NUMBERS = frozenset({"lift_fresh_copy", "detach", "detach_", "clone", "zeros", "ones", "full"})
"""Functions that make constants, or copy them as `torch.export` has it."""
_MOST_CALLS = 32
_TOLERANCE = 2e-6
"""Constants in single precision move the values by about 1e-7; GELU and its form with tanh differ by 5e-4."""
_OVERFLOW = 80.0
"""Where exponentials in single precision become infinite."""

_Values = dict[fx.Node, Tensor]


def _grid() -> Tensor:
    """Points next to 0, with all kinks of the known functions, and far out where clips may be."""
    near = torch.arange(-512, 513, dtype=torch.float64, device="cpu") / 64
    exponents = torch.arange(-40, 127, 0.5, dtype=torch.float64, device="cpu")
    powers = torch.exp2(exponents[(exponents < -6) | (exponents > 3)])
    return torch.cat([near, powers, -powers]).sort().values


_PROBES = _grid()


@dataclass(frozen=True)
class _Known:
    """A function of torch with its settings, of an input times a scale, over the scale."""

    function: Callable[..., Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        result: Tensor = self.function(x * self.scale, **self.settings) / self.scale
        return result


@dataclass(frozen=True)
class _Region:
    """The signal that is read, and the calls, last first."""

    source: fx.Node
    calls: tuple[fx.Node, ...]


def recognise(traced: fx.GraphModule, rules: Mapping[str, Rule]) -> None:
    """Replace each activation that is spelled out by one call, the largest regions first.

    Regions stay as they are if the rules take their calls, but not that of the activation.
    """
    graph = _Graph(traced)
    for last in reversed(list(traced.graph.nodes)):
        for region in reversed(list(graph.regions(last)) if last in graph.places else []):
            known = graph.known(region)
            if known is not None and (_is_handled(known, rules) or not graph.is_handled(region, rules)):
                graph.replace(region, known)
                break


def _is_handled(known: _Known, rules: Mapping[str, Rule]) -> bool:
    name = known.function.__name__
    return name in ("relu", "clamp") or rules.get(name) is not RULES.get(name)


class _Graph:
    """A traced graph, its constants of one value, and the order of its calls."""

    def __init__(self, traced: fx.GraphModule) -> None:
        self.traced = traced
        self.places = {node: place for place, node in enumerate(traced.graph.nodes)}
        self._nodes = list(self.places)
        self._constants: dict[fx.Node, Tensor] = {}
        for node in self._nodes:
            value = self._constant(node)
            if value is not None and value.numel() == 1 and not value.is_complex():
                self._constants[node] = torch.tensor(value.item(), dtype=torch.float64, device="cpu")

    def _constant(self, node: fx.Node) -> Tensor | None:
        """The value of a node that is computed from numbers; a parameter may still be trained."""
        if node.op == "get_attr":
            value = operator.attrgetter(str(node.target))(self.traced)
            trained = isinstance(value, nn.Parameter) and value.requires_grad
            return value if isinstance(value, Tensor) and not trained else None
        if any(read not in self._constants for read in node.all_input_nodes):
            return None
        made = node.op == "call_function" and function_name(node) in _NUMBERS and is_of_torch(node.target)
        found = self._evaluate([node], self._constants) if made or self._is_elementwise(node) else None
        return found[node] if found else None

    def regions(self, last: fx.Node) -> Iterator[_Region]:
        """The regions that end in a call, the smallest first."""
        calls: list[fx.Node] = []
        open_ends = {last}
        while len(calls) < _MOST_CALLS:
            node = max(open_ends, key=self.places.__getitem__)
            if not self._is_elementwise(node):
                return
            calls.append(node)
            open_ends.remove(node)
            open_ends.update(read for read in node.all_input_nodes if read not in self._constants)
            if not open_ends:
                return
            if len(open_ends) == 1 and len(calls) > 1:
                yield _Region(next(iter(open_ends)), tuple(calls))

    def known(self, region: _Region) -> _Known | None:
        """The activation that a region computes."""
        source, last = region.source.meta, region.calls[0].meta
        if any(source.get(key) != last.get(key) for key in ("shape", "dtype")) or not self._is_pure(region):
            return None
        found = self._evaluate(region.calls[::-1], {**self._constants, region.source: _PROBES})
        if found is None or not _are_signals(found[region.calls[0]]):
            return None
        values = found[region.calls[0]]
        known = next((known for known in _candidates(values) if _agree(values, known(_PROBES))), None)
        alone = [found[node] for node in region.calls if {*node.all_input_nodes} == {region.source}]
        if known is None or any(_agree(value, known(_PROBES)) for value in alone):
            return None  # one call computes it already, as in a ReLU of a ReLU
        return known

    def is_handled(self, region: _Region, rules: Mapping[str, Rule]) -> bool:
        """Whether there are rules for all calls of a region; those of comparisons refuse signals."""
        return all(self._name(node) in rules.keys() - _COMPARISONS for node in region.calls)

    def replace(self, region: _Region, known: _Known) -> None:
        """Call the known function; calls that others read stay."""
        graph, last, x = self.traced.graph, region.calls[0], region.source
        with graph.inserting_before(last):
            if known.scale != 1:
                x = graph.call_function(operator.mul, (x, known.scale))
                x.meta.update(last.meta)
            result = graph.call_function(known.function, (x,), dict(known.settings))
            result.meta.update(last.meta, calls=len(region.calls))
            if known.scale != 1:
                result = graph.call_function(operator.truediv, (result, known.scale))
                result.meta.update(last.meta)
        last.replace_all_uses_with(result)
        for node in region.calls:
            if not node.users:
                graph.erase_node(node)
                del self.places[node]

    def _module(self, node: fx.Node) -> nn.Module | None:
        return self.traced.get_submodule(str(node.target)) if node.op == "call_module" else None

    def _name(self, node: fx.Node) -> str:
        module = self._module(node)
        return function_name(node) if module is None else layer_type(module).__name__

    def _is_elementwise(self, node: fx.Node) -> bool:
        module = self._module(node)
        if module is not None:
            kind = layer_type(module)
            plain = not has_hooks(module) and not is_patched(module)
            return plain and is_torchs(kind) and kind.__name__ in _MODULES
        name = function_name(node).strip("_")
        if name in ("max", "min"):  # of two tensors, not along a dimension
            return len(node.all_input_nodes) == len(node.args) == 2 and not node.kwargs
        return node.op in ("call_function", "call_method") and name in _FUNCTIONS and is_of_torch(node.target)

    def _is_pure(self, region: _Region) -> bool:
        """Whether nothing is written over between the first and the last call, but what only they read."""
        between = self._nodes[self.places[region.calls[-1]] : self.places[region.calls[0]] + 1]
        for node in between:
            if node in self.places and node not in self._constants and self._may_write(node):
                written = first_argument(node)
                inside = node in region.calls and written in region.calls
                if not inside or len(written.users) > 1:
                    return False
        return True

    def _may_write(self, node: fx.Node) -> bool:
        by_place = any(argument is True for argument in node.args)  # as in F.relu(x, True)
        return in_place(node) or may_write(node, self._module(node)) or by_place

    def _evaluate(self, calls: Sequence[fx.Node], known: _Values) -> _Values | None:
        """What each call gives for known values of what it reads; None if one cannot be computed."""
        values: _Values = dict(known)
        try:
            for node in calls:
                # Copies, because the call may write over its input.
                args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n].clone())
                function: Any = self._module(node) or node.target
                function = getattr(torch.Tensor, function) if isinstance(function, str) else function
                with torch.no_grad():
                    values[node] = function(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return None  # its rule refuses it
        return values if all(isinstance(value, Tensor) for value in values.values()) else None


def _candidates(values: Tensor) -> Iterator[_Known]:
    """The known functions, with settings as the values at some probes have them."""

    def at(x: float) -> float:
        return float(values[torch.searchsorted(_PROBES, x)])

    largest, slope, alpha = at(float(_PROBES[-1])), -at(-1.0), -at(-64.0)
    yield _Known(F.relu)
    if 0 < largest < float(_PROBES[-1]):
        yield _Known(torch.clamp, {"min": 0.0, "max": largest})
    if slope > 0 and abs(slope - 1) > 1e-3:
        yield _Known(F.leaky_relu, {"negative_slope": slope})
    for function in (F.silu, torch.sigmoid, torch.tanh, F.gelu, F.hardswish):
        yield _Known(function)
    yield _Known(F.gelu, {"approximate": "tanh"})
    if alpha > 0:
        yield _Known(F.elu, {"alpha": alpha})
    gate = at(1.0)
    if 0 < gate < 1 and gate != 0.5:
        yield _Known(F.silu, scale=-math.log(1 / gate - 1))


def _are_signals(values: Tensor) -> bool:
    return values.shape == _PROBES.shape and values.is_floating_point()


def _agree(values: Tensor, expected: Tensor) -> bool:
    """Whether values at the probes are those of a function, up to the rounding of constants."""
    if not _are_signals(values):
        return False
    most = _TOLERANCE * (_PROBES.abs().clamp(max=1) + expected.abs()) + 1e-12
    overflows = ~values.isfinite() & (_PROBES.abs() > _OVERFLOW)
    return bool((((values - expected).abs() <= most) | overflows).all())
