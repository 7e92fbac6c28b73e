"""The context of an operator: values, the module under construction, and the call of one node."""

import keyword
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import torch
from torch import Tensor, fx, nn

from rheobase.conversion import Refusal
from rheobase.exchange.onnx.reading import Source, to_tensor
from rheobase.network import RESERVED, free_name

ANY_BATCH = 1_000_003
"""Stands for the batch size: a prime, so that the dimension that it is a factor of is that of the batch."""


@dataclass(frozen=True)
class Signal:
    """A value that depends on the input.

    Attributes:
        node: Its node in the graph.
        like: A tensor of its shape and type, without values.
        outer: How many values the dimension of the batch has for each sample that come before the next
            sample, as 7 in (7·batch, …).
        grid: The scale and the zero point, where the file has integers instead.
    """

    node: fx.Node
    like: Tensor
    outer: int = 1
    grid: tuple[Tensor, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; `ANY_BATCH` is a factor of one size."""
        return tuple(self.like.shape)

    @property
    def at(self) -> int:
        """The dimension of the batch, which may be merged with others."""
        return next(i for i, size in enumerate(self.shape) if size % ANY_BATCH == 0)


Value = Signal | Tensor | None


class Function(nn.Module):
    """A function of operands, some of them constants."""

    def __init__(self, function: Callable[..., Tensor], *operands: Tensor | None, **settings: Any) -> None:
        super().__init__()
        self.function, self.settings = function, settings
        self.names = [f"operand{number}" for number in range(len(operands))]
        for name, operand in zip(self.names, operands, strict=True):
            self.register_buffer(name, operand)

    def forward(self, *signals: Tensor) -> Tensor:
        left, stored = iter(signals), [getattr(self, name) for name in self.names]
        operands = [next(left) if operand is None else operand for operand in stored]
        return self.function(*operands, **self.settings)


class Builder:
    """The torch module under construction."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, Value] = dict(source.constants)
        like = torch.empty((ANY_BATCH, *source.shape), dtype=source.dtype, device="meta")
        self.values[source.input] = Signal(self.graph.placeholder("x"), like)
        self.batch = source.batch or ANY_BATCH

    def add(self, name: str, module: nn.Module, signals: tuple[Signal, ...]) -> Signal:
        """Add a module under a free name, and a call of it."""
        # One precision throughout, as casts of the signal between them are ignored.
        module.eval().to(self.source.precision)
        for tensor in [*module.parameters(), *module.buffers()]:
            mask = tensor.isneginf()  # of logits
            if tensor.is_floating_point() and not (tensor.isfinite() | mask).all():
                raise Refusal(
                    "its weights are NaN or infinite", "train the network again or use another file"
                )
        free = free_name(_identifier(name), self._is_taken)
        empty = {name: torch.empty_like(t, device="meta") for name, t in module.state_dict().items()}
        with torch.no_grad():
            like = torch.func.functional_call(module, empty, tuple(signal.like for signal in signals))
        if sum(size % ANY_BATCH == 0 for size in like.shape) != 1:
            raise Refusal(
                f"it mixes samples: no single dimension of its result, {self.show(like.shape)}, is the batch",
                "keep the batch in a dimension of its own, best dimension 0",
            )
        self.root.add_module(free, module)
        place = self.graph.call_module(free, tuple(signal.node for signal in signals))
        made = Signal(place, like)
        same = [signal.outer for signal in signals if signal.shape[signal.at] == made.shape[made.at]]
        return replace(made, outer=max(same, default=1))

    def sizes(self, shape: Sequence[int]) -> list[int]:
        """A shape with the file's batch size, if the file fixes it."""
        return [n if n % ANY_BATCH else n // ANY_BATCH * self.batch for n in shape]

    def show(self, shape: Sequence[int]) -> str:
        """A shape for messages."""
        sizes = [str(n) if n % ANY_BATCH else f"{n // ANY_BATCH}·batch" for n in self.sizes(shape)]
        return f"({', '.join(size.removeprefix('1·') for size in sizes)})"

    def _is_taken(self, name: str) -> bool:
        return name in RESERVED or keyword.iskeyword(name) or name in dict(self.root.named_children())

    def finish(self) -> fx.GraphModule:
        """The complete module; several outputs are a dictionary."""
        outputs = {name: self._output(name) for name in self.source.outputs}
        self.graph.output(outputs if len(outputs) > 1 else next(iter(outputs.values())))
        return fx.GraphModule(self.root, self.graph, "OnnxNetwork").eval()

    def _output(self, name: str) -> fx.Node:
        value = self.values.get(name)
        if not isinstance(value, Signal):
            raise ValueError(
                f"the output {name!r} does not depend on the input: choose others by outputs=, or export the "
                "file again"
            )
        if value.grid is not None:
            raise ValueError(f"the output {name!r} is quantised: export the file with DequantizeLinear last")
        return value.node


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
    def shapes(self) -> str:
        """The shapes of the inputs, for messages."""
        return ", ".join(self.builder.show(value.shape) for value in self.inputs if value is not None)

    @property
    def x(self) -> Signal:
        """The first input, a signal."""
        value = self.inputs[0]
        if not isinstance(value, Signal):
            raise Refusal("its first input is a constant", "put the signal first")
        return value

    @property
    def sizes(self) -> list[int]:
        """The shape of the first input, with the file's batch size if the file fixes it."""
        return self.builder.sizes(self.x.shape)

    @property
    def rank(self) -> int:
        """The number of dimensions of the first input."""
        return len(self.x.shape)

    def emit(self, module: nn.Module, *signals: Signal) -> Signal:
        """Call a module, by default on the first input."""
        return self.builder.add(self.name, module, signals or (self.x,))

    def apply(self, function: Callable[..., Tensor], *operands: Value, **settings: Any) -> Signal:
        """Call a function, by default of the first input; constants among its operands are kept."""
        operands = operands or (self.x,)
        signals = tuple(value for value in operands if isinstance(value, Signal))
        constants = [value if isinstance(value, Tensor) else None for value in operands]
        return self.builder.add(self.name, Function(function, *constants, **settings), signals)

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

    def axis(self, default: int) -> int:
        """The dimension that the node works along."""
        axis: int = self.attribute("axis", default) % self.rank
        return axis

    def expect_samples_apart(self, *axes: int) -> None:
        """Refuse to work along the dimension of the batch."""
        if self.x.at in axes:
            raise Refusal("it works along the batch, which mixes samples", "use other dimensions")


def _identifier(name: str) -> str:
    plain = re.sub(r"\W+", "_", name).strip("_") or "node"
    return f"node_{plain}" if plain[0].isdigit() else plain
