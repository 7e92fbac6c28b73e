"""Coverage: what each call of a model becomes, before anything is converted."""

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rheobase.conversion.capture import lower
from rheobase.io import Result, Shown, axes_or_new, draw_bars
from rheobase.network import SYNAPTIC, count_multiplications, traits_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """

    name: str
    call: str
    becomes: str
    neurons: int
    operations: int
    remedy: str
    line: str = ""
    no_export: str = ""


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
        """Whether every method accepts the model; some methods accept more."""
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
        kept = [f"  {line.name} ({line.call}): {line.no_export}" for line in self.lines if line.no_export]
        return "\n".join(
            [verdict, *(["Converted, it cannot be exported or put on hardware:", *kept] if kept else [])]
        )


def inspect(model: nn.Module, example: Tensor) -> Coverage:
    """Report what every call of a model becomes when it is converted, and what is unsupported.

    The model is not changed. An unsupported call is a line of the result, not an error.

    Args:
        model: The network.
        example: One batch of inputs.

    Raises:
        TypeError: If the example is not a tensor.
        CaptureError: If the model cannot be traced or cannot run on the example.
    """
    if not isinstance(example, Tensor):
        raise TypeError(f"the example input must be one tensor, got {type(example).__name__}")
    _, lowering = lower(model, example)
    sites = {placed for placed, _, _ in lowering.sites.values()}
    lines = []
    for row in lowering.rows:
        neurons = operations = 0
        name, no_export = row.name, ""
        for node in row.nodes:
            if not row.refused:  # as in the converted network, where a module called twice has two names
                name = str(node.target)
            inputs, outputs = (
                math.prod(n.meta.get("shape", ())[1:]) for n in (node.all_input_nodes[0], node)
            )
            operation = lowering.root.get_submodule(str(node.target))
            if node in sites:
                neurons += outputs
            if isinstance(operation, SYNAPTIC):
                operations += count_multiplications(operation, inputs, outputs)
            no_export = no_export or traits_of(operation).no_nir
        lines.append(Line(name, row.call, row.becomes, neurons, operations, row.remedy, row.line, no_export))
    return Coverage(tuple(lines))


def _amount(value: int) -> str:
    return f"{value:,}" if value else ""
