"""The context of an operator: values, the module under construction, and the call of one node."""

import keyword
import re
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import Tensor, fx, nn

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.reading import Source, to_tensor
from rheobase.network import RESERVED, free_name


@dataclass(frozen=True)
class Signal:
    """A value that depends on the input.

    Attributes:
        node: Its node in the graph.
        empty: Its value for an empty batch.
        shape: Its shape.
        grid: The scale and the zero point, where the file has integers instead.
    """

    node: fx.Node
    empty: Tensor
    shape: tuple[int, ...]
    grid: tuple[Tensor, Tensor] | None = None


Value = Signal | Tensor | None


class Builder:
    """The torch module under construction."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, Value] = dict(source.constants)
        empty = torch.empty((0, *source.shape[1:]), dtype=source.dtype)
        place = self.graph.placeholder("x")
        self.values[source.input] = Signal(place, empty, source.shape)

    def add(self, name: str, module: nn.Module, signals: tuple[Signal, ...]) -> Signal:
        """Add a module under a free name, and a call of it."""
        # One precision throughout, as casts of the signal are ignored.
        module.eval().to(self.source.dtype)
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise Refusal(
                    "its weights are NaN or infinite", "train the network again or use another file"
                )
        free = free_name(_identifier(name), self._is_taken)
        with torch.no_grad():
            empty = module(*(signal.empty for signal in signals))
        if not empty.dim() or empty.shape[0]:
            raise Refusal("the batch is not the first dimension of its result", "keep dimension 0, the batch")
        self.root.add_module(free, module)
        place = self.graph.call_module(free, tuple(signal.node for signal in signals))
        return Signal(place, empty, (self.source.shape[0], *empty.shape[1:]))

    def _is_taken(self, name: str) -> bool:
        return name in RESERVED or keyword.iskeyword(name) or name in dict(self.root.named_children())

    def finish(self) -> fx.GraphModule:
        """The complete module."""
        output = self.values.get(self.source.output)
        if not isinstance(output, Signal):
            raise ValueError(
                f"the output {self.source.output!r} does not depend on the input: export the file again"
            )
        if output.grid is not None:
            raise ValueError(
                f"the output {self.source.output!r} is quantised: export the file with DequantizeLinear last"
            )
        self.graph.output(output.node)
        return fx.GraphModule(self.root, self.graph, "OnnxNetwork").eval()


@dataclass(frozen=True)
class Call:
    """The call of one node."""

    builder: Builder
    node: onnx.NodeProto
    name: str
    inputs: list[Value]

    @property
    def opset(self) -> int:
        """The version of the standard operators."""
        return self.builder.source.opset

    @property
    def signals(self) -> list[Signal]:
        """The inputs that are signals."""
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
            raise Refusal("its first input is a constant", "put the signal first")
        return value

    def emit(self, module: nn.Module, *signals: Signal) -> Signal:
        """Call a module, by default on the first input."""
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
        """An input that must be a constant; None if it is left out."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(value, Signal):
            raise Refusal(f"its {what} is not a constant", "export the model with fixed weights and sizes")
        return value

    def weight(self, index: int, what: str) -> Tensor:
        """An input that must be present, and a constant."""
        value = self.constant(index, what)
        if value is None:
            raise Refusal(f"its {what} is missing", "the file is damaged: export it again")
        return value

    def numbers(self, name: str, index: int) -> Any:
        """A setting: an attribute in older files, a constant input in newer ones; None if left out."""
        value = self.constant(index, name)
        return self.attribute(name) if value is None else value.tolist()


def _identifier(name: str) -> str:
    plain = re.sub(r"\W+", "_", name).strip("_") or "node"
    return f"node_{plain}" if plain[0].isdigit() else plain
