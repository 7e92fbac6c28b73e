"""From nodes to a torch module: one module per node, named after it.

A value is either a constant or a signal. What depends on constants alone is computed while reading, so that
the arithmetic by which exporters spell out shapes leaves no trace. Signals know their shapes, from running
each new module on a batch of no samples.
"""

import keyword
import re
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import Tensor, fx, nn

from rheobase.lowering import Refusal, refuse_unknown
from rheobase.onnx.constants import FOLDS
from rheobase.onnx.operators import OPERATORS
from rheobase.onnx.reading import Source, to_tensor
from rheobase.operations import RESERVED


@dataclass(frozen=True)
class Signal:
    """A value that depends on the input: its place in the graph, its value for no samples, and its shape."""

    node: fx.Node
    empty: Tensor
    shape: tuple[int, ...]


Value = Signal | Tensor | None


def build(source: Source) -> fx.GraphModule:
    """Build the network of a file.

    Raises:
        ValueError: Something in it is not supported; all such nodes are named.
    """
    builder = Builder(source)
    refusals: list[str] = []
    for number, node in enumerate(source.nodes):
        name = node.name or f"{node.op_type}_{number}"
        results: tuple[Value, ...] = ()
        try:
            results = _build_node(builder, node, name)
        except Refusal as refusal:
            refusals.append(f"  {name} ({node.op_type}): {refusal.reason}\n    -> {refusal.remedy}")
        # Values that could not be built are None, and pass on silently: one look names all the causes.
        padded = (*results, *[None] * len(node.output))
        builder.values.update(zip(node.output, padded, strict=False))
    if refusals:
        raise ValueError("this ONNX file cannot be made into a network:\n" + "\n".join(refusals))
    return builder.finish()


def _build_node(builder: "Builder", node: onnx.NodeProto, name: str) -> tuple[Value, ...]:
    known = node.domain in ("", "ai.onnx") and node.op_type in OPERATORS.keys() | FOLDS.keys()
    if not known and not all(isinstance(builder.values.get(i), Tensor) for i in node.input if i):
        raise refuse_unknown(node.op_type)
    inputs: list[Value] = []
    for i in node.input:
        if i and i not in builder.values:
            raise Refusal(
                f"its input {i!r} is made by no node before it", "the file is damaged: export it again"
            )
        if i and builder.values[i] is None:
            return ()
        inputs.append(builder.values[i] if i else None)
    call = Call(builder, node, name, inputs)
    foldable = known and node.op_type in FOLDS and (node.op_type == "Shape" or not call.signals)
    if not foldable and not call.signals:
        raise Refusal(
            "it computes a constant in a way that is not known here",
            "take off parametrizations such as weight norm, or export with do_constant_folding=True",
        )
    if not foldable and node.op_type not in OPERATORS:
        raise Refusal(
            "it works on the signal, not on its shape",
            "write the model with slices for parts of a signal, and export it again",
        )
    try:
        result = FOLDS[node.op_type](call) if foldable else OPERATORS[node.op_type](call)
    except (RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        reason = (
            f"it could not be built on inputs of shapes {call.shapes} ({str(error).partition(chr(10))[0]})"
        )
        raise Refusal(reason, "check the file with onnx.checker, or export it again") from error
    return result if isinstance(result, tuple) else (result,)


class Builder:
    """The torch module as it grows."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, Value] = dict(source.constants)
        empty = torch.empty((0, *source.shape[1:]), dtype=source.dtype)
        place = self.graph.placeholder(_identifier(source.input))
        self.values[source.input] = Signal(place, empty, source.shape)

    def add(self, name: str, module: nn.Module, signals: tuple[Signal, ...]) -> Signal:
        """Put a module under a free name and call it."""
        # One precision throughout, as casts of the signal are passed over.
        module.eval().to(self.source.dtype)
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Refusal(
                    "its weights hold NaN or infinite values", "train the network again or take another file"
                )
        free, number = _identifier(name), 1
        while hasattr(self.root, free) or free in RESERVED or keyword.iskeyword(free):
            number += 1
            free = f"{_identifier(name)}_{number}"
        with torch.no_grad():
            empty = module(*(signal.empty for signal in signals))
        if not empty.dim() or empty.shape[0]:
            raise Refusal("its result does not have the batch first", "keep dimension 0, the batch, as it is")
        self.root.add_module(free, module)
        place = self.graph.call_module(free, tuple(signal.node for signal in signals))
        return Signal(place, empty, (self.source.shape[0], *empty.shape[1:]))

    def finish(self) -> fx.GraphModule:
        """The module, once all nodes are in."""
        output = self.values.get(self.source.output)
        if not isinstance(output, Signal):
            raise ValueError(
                f"the output {self.source.output!r} does not depend on the input: export the file again"
            )
        self.graph.output(output.node)
        return fx.GraphModule(self.root, self.graph, "OnnxNetwork").eval()


@dataclass(frozen=True)
class Call:
    """One node, as its operator sees it."""

    builder: Builder
    node: onnx.NodeProto
    name: str
    inputs: list[Value]

    @property
    def opset(self) -> int:
        """Version of the standard operators."""
        return self.builder.source.opset

    @property
    def signals(self) -> list[Signal]:
        """Those inputs that are signals."""
        return [value for value in self.inputs if isinstance(value, Signal)]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the inputs."""
        return [tuple(value.shape) for value in self.inputs if value is not None]

    @property
    def x(self) -> Signal:
        """The first input, a signal."""
        value = self.inputs[0]
        if not isinstance(value, Signal):
            raise Refusal("its first input is a constant", "write the model so that the signal comes first")
        return value

    def emit(self, module: nn.Module, *signals: Signal) -> Signal:
        """Call a module, on the first input if nothing else is said."""
        return self.builder.add(self.name, module, signals or (self.x,))

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute of the node."""
        for found in self.node.attribute:
            if found.name == name:
                value = onnx.helper.get_attribute_value(found)
                if isinstance(value, onnx.TensorProto):
                    return to_tensor(value)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def constant(self, index: int, what: str) -> Tensor | None:
        """An input that must be a constant, or None where it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Signal):
            raise Refusal(f"its {what} is not a constant", "export the model with fixed weights and sizes")
        return value

    def weight(self, index: int, what: str) -> Tensor:
        """An input that must be there, and a constant."""
        value = self.constant(index, what)
        if value is None:
            raise Refusal(f"its {what} is missing", "the file is damaged: export it again")
        return value

    def numbers(self, name: str, index: int) -> Any:
        """A setting that older files give as an attribute and newer ones as a constant input, if at all."""
        value = self.constant(index, name)
        return self.attribute(name) if value is None else value.tolist()


def _identifier(name: str) -> str:
    plain = re.sub(r"\W+", "_", name).strip("_") or "node"
    return f"node_{plain}" if plain[0].isdigit() else plain
