"""Coverage: what each call of a model becomes, before anything is converted."""

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rheobase import methods
from rheobase.conversion.capture import assemble, lower, move_to_double
from rheobase.conversion.encoders import insert_encoders
from rheobase.io import Result, Shown, axes_or_new, draw_bars
from rheobase.methods import Method
from rheobase.network import (
    ANALOG,
    SYNAPTIC,
    MatMul,
    Network,
    count_multiplications,
    count_products,
    traits_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ENCODER = "encoder"
"""What a line names as the call of a site that conversion adds."""


@dataclass(frozen=True)
class Line:
    """One call of the model.

    Attributes:
        name: Where it is.
        call: What is called there.
        becomes: What it becomes, or why it is refused.
        neurons: The number of neurons it becomes, for one sample.
        operations: Its multiplications, for one sample.
        remedy: What to change if it is refused.
        line: The file and line of the model, if known.
        no_export: Why it converts, but cannot be written as NIR or run on hardware, and what to do.
        analog: The operations in it that are computed on analog values.
    """

    name: str
    call: str
    becomes: str
    neurons: int
    operations: int
    remedy: str
    line: str = ""
    no_export: str = ""
    analog: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Coverage(Result):
    """Every call of a model, and whether the model can be converted as it is; prints as a table."""

    lines: tuple[Line, ...]

    @property
    def refused(self) -> tuple[Line, ...]:
        """The calls that cannot become spikes."""
        return tuple(line for line in self.lines if line.remedy)

    @property
    def sites(self) -> tuple[Line, ...]:
        """The calls that become neurons."""
        return tuple(line for line in self.lines if line.neurons)

    @property
    def convertible(self) -> bool:
        """Whether the named method accepts the model, or every method if none was named."""
        return bool(self.sites) and not self.refused

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the multiplications of each layer with weights."""
        counts = {line.name: line.operations for line in self.lines if line.operations}
        return draw_bars(axes_or_new(ax), {"": counts}, "multiplications per sample")

    def _records(self) -> list[dict[str, Any]]:
        return [asdict(line) for line in self.lines]

    def _shown(self) -> Shown:
        table = []
        for line in self.lines:
            becomes = f"REFUSED: {line.becomes}" if line.remedy else line.becomes
            table.append((line.name, line.call, becomes, _amount(line.neurons), _amount(line.operations)))
            if line.remedy:
                table.append(("", "", f"-> {line.remedy}", "", ""))
                if line.line:
                    table.append(("", "", f"   at {line.line}", "", ""))
        head = ("where", "call", "becomes", "neurons", "operations")
        return Shown(head, table, notes=self._verdict(), left=3)

    def _verdict(self) -> str:
        neurons = sum(line.neurons for line in self.lines)
        operations = sum(line.operations for line in self.lines)
        if self.refused:
            calls = (
                "1 unsupported call" if len(self.refused) == 1 else f"{len(self.refused)} unsupported calls"
            )
            return f"{calls}; change this before converting."
        if not self.sites:
            return "The model has no activation, so nothing can become neurons."
        sites = "1 site" if len(self.sites) == 1 else f"{len(self.sites)} sites"
        verdict = f"{sites}, {neurons:,} neurons, {operations:,} multiplications: converts."
        encoders = sum(line.call == ENCODER for line in self.lines)
        if encoders:
            analog = Counter(what for line in self.lines for what in line.analog)
            stays = ", ".join(f"{count} × {what}" for what, count in analog.items())
            verdict += (
                f"\nEncoders, which make the inputs of matrix products events: {encoders} of the sites. "
                f"Computed on sums: {stays or 'nothing'}."
            )
        kept = [f"  {line.name} ({line.call}): {line.no_export}" for line in self.lines if line.no_export]
        return "\n".join(
            [verdict, *(["Converted, it cannot be exported or put on hardware:", *kept] if kept else [])]
        )


def inspect(
    model: nn.Module, example: Tensor, method: str | Method | None = None, **settings: Any
) -> Coverage:
    """Report what every call of a model becomes when it is converted, and what is unsupported.

    The model is not changed. An unsupported call is a line of the result, not an error.

    Args:
        model: The network.
        example: One batch of inputs.
        method: A method, or its name with its `settings`: what it has neurons for converts too. By default
            only what every method converts.
        **settings: Settings of the named method.

    Raises:
        TypeError: If the example is not a tensor.
        CaptureError: If the model cannot be traced or cannot run on the example.
    """
    if not isinstance(example, Tensor):
        raise TypeError(f"the example input must be one tensor, got {type(example).__name__}")
    chosen = None if method is None else methods.get(method, **settings)
    _, lowering = lower(*move_to_double(model, example), () if chosen is None else chosen.handles)
    sites = {placed for placed, _, _ in lowering.sites.values()} | lowering.inner_sites
    lines = []
    for row in lowering.rows:
        neurons = operations = 0
        name, no_export, analog = row.name, "", list[str]()
        for node in row.nodes:
            if not row.refused and not str(node.target).startswith(f"{row.name}."):
                name = str(node.target)  # as in the converted network, where a module called twice has two
            shapes = [n.meta.get("shape", ())[1:] for n in (*node.all_input_nodes, node)]
            inputs, outputs = math.prod(shapes[0]), math.prod(shapes[-1])
            operation = lowering.root.get_submodule(str(node.target))
            if node in sites:
                neurons += outputs
            if isinstance(operation, SYNAPTIC):
                operations += count_multiplications(operation, inputs, outputs)
            elif isinstance(operation, MatMul):
                operations += count_products(shapes[0], shapes[1])
            if isinstance(operation, ANALOG) and not isinstance(operation, MatMul):
                analog.append(traits_of(operation).name.removeprefix("analog "))
            no_export = no_export or traits_of(operation).no_nir
        more = row.remedy, row.line, no_export, tuple(analog)
        lines.append(Line(name, row.call, row.becomes, neurons, operations, *more))
    if chosen is not None and not any(row.refused for row in lowering.rows):
        lines += _encoder_lines(assemble(lowering), chosen)
    return Coverage(tuple(lines))


def _encoder_lines(network: Network, method: Method) -> list[Line]:
    """A line for each site that conversion puts in front of a matrix product."""
    names = insert_encoders(network, method.encodes)
    shapes = {str(node.target): node.meta.get("shape", ())[1:] for node in network.module.graph.nodes}
    return [Line(name, ENCODER, "site", math.prod(shapes[name]), 0, "") for name in names]


def _amount(value: int) -> str:
    return f"{value:,}" if value else ""
