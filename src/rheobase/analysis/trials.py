"""The parts of advice: a budget, the trials, and the choice."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from textwrap import shorten
from types import NoneType
from typing import TYPE_CHECKING, Any

from rheobase.io import Result, Shown, axes_or_new, package_versions, replace_file
from rheobase.methods import Correction, Method, settings_of
from rheobase.network import SNN, Start

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRIED = ("tried", "accuracy", "T", "lines", "energy", "")
"""The header of a table of trials."""


@dataclass(frozen=True)
class Budget:
    """What a conversion may cost; what is not given is not limited.

    With a loss of accuracy alone, `advise` looks for the fewest steps; with steps or joules alone, for the
    best accuracy; with both, it takes the first conversion within all limits.

    Attributes:
        accuracy_loss: Points of accuracy below the ANN's.
        steps: Number of time steps from the input to the answer, the true latency: where neurons collect a
            window, every layer takes one.
        joules: Energy per image.
        lines: Binary wires that a neuron may drive. 1 allows spikes of 0 and 1 only, which leaves out
            `sigma-delta`.
    """

    accuracy_loss: float | None = None
    steps: int | None = None
    joules: float | None = None
    lines: int | None = None

    def __post_init__(self) -> None:
        if self.accuracy_loss is None and self.steps is None and self.joules is None:
            found = "an empty budget" if self.lines is None else f"a budget of lines={self.lines} alone"
            raise ValueError(f"{found}: give accuracy_loss=, steps= or joules=")
        for name in ("accuracy_loss", "joules"):
            if not isinstance(getattr(self, name), (int, float, NoneType)):
                raise TypeError(f"{name} must be a number, got {getattr(self, name)!r}")
        if self.accuracy_loss is not None and not self.accuracy_loss >= 0:
            raise ValueError(f"accuracy_loss must be at least 0 points, got {self.accuracy_loss}")
        for name in ("steps", "lines"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        if self.joules is not None and not self.joules > 0:
            raise ValueError(f"joules must be above zero, got {self.joules}")

    @property
    def steps_alone(self) -> bool:
        """Whether neither accuracy nor energy is limited."""
        return self.accuracy_loss is None and self.joules is None

    def __str__(self) -> str:
        parts = {
            f"a loss of {self.accuracy_loss} points": self.accuracy_loss,
            f"{self.steps} step{'' if self.steps == 1 else 's'}": self.steps,
            f"{self.joules} J": self.joules,
            f"{self.lines} line{'' if self.lines == 1 else 's'} per neuron": self.lines,
        }
        return " and ".join(text for text, value in parts.items() if value is not None)


@dataclass(frozen=True)
class Trial:
    """One conversion that was tried.

    Attributes:
        method: The method with its settings.
        initial: The start.
        steps: The best number of steps within the budget; 0 if it was not measured.
        accuracy: Accuracy after these steps on the held-out data, in percent.
        joules: Energy per image up to then.
        latency: The true latency: more than `steps` where every layer waits for its input.
        lines: Binary wires that a neuron drives; 0 if it was not converted.
        met: Whether it is within the budget.
        remark: What to say of that, if the budget limits more than the number of steps.
        note: Why it was not measured, if it was not.
    """

    method: Method
    initial: Start
    steps: int = 0
    accuracy: float = 0.0
    joules: float = 0.0
    latency: int = 0
    lines: int = 0
    met: bool = False
    remark: str = ""
    note: str = ""

    @property
    def name(self) -> str:
        """The method with those it corrects, the settings that differ from their examples, and the start."""
        return f"{_describe(self.method)}, start {self.initial}"

    @property
    def duration(self) -> str:
        """The number of steps, and the true latency if it is another."""
        return str(self.steps) if self.latency == self.steps else f"{self.steps} ({self.latency})"

    @property
    def cells(self) -> tuple[str, ...]:
        """As a row of a table with the header `TRIED`."""
        if self.note:
            return self.name, "", "", "", "", shorten(self.note, 70, placeholder=" …")
        measured = f"{self.accuracy:.2f} %", self.duration, str(self.lines), f"{self.joules * 1e6:.3g} µJ"
        return self.name, *measured, self.remark

    def plain(self) -> dict[str, Any]:
        """As plain values for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("method", "initial")}
        settings = settings_of(self.method)
        return {"method": self.method.name, "settings": settings, "initial": str(self.initial), **values}

    def __str__(self) -> str:
        if self.note:
            return f"{self.name:<44} not measured: {shorten(self.note, 70, placeholder=' …')}"
        lines = f"{self.lines} line{'s' if self.lines > 1 else ''}"
        measured = f"{self.accuracy:6.2f} %  T = {self.duration:<7} {lines:<8} {self.joules * 1e6:9.3g} µJ"
        return f"{self.name:<44} {measured}{self.remark and f'  {self.remark}'}"


def _describe(method: Method) -> str:
    """A method after those it corrects, each with the settings that differ from its example."""
    usual = type(method).example()
    changed = [
        f" {f.name}={getattr(method, f.name)}"
        for f in fields(method)
        if f.name != "base" and getattr(method, f.name) != getattr(usual, f.name)
    ]
    corrected = f"{_describe(method.base)} + " if isinstance(method, Correction) else ""
    return f"{corrected}{method.name}{''.join(changed)}"


@dataclass(frozen=True, repr=False)
class Advice(Result):
    """The recommended conversion.

    Attributes:
        budget: The budget.
        met: Whether a conversion within the budget was found.
        snn: The chosen conversion: the best within the budget, else the closest.
        chosen: How it was made and how it performs.
        ann: The ANN's accuracy on the held-out data, in percent.
        measure: What accuracies are: "accuracy", or "agreement" with the ANN where the data has no labels.
        trials: Everything that was tried, in order.
        verdict: The result in words.
        interrupted: Whether the search was stopped early.
    """

    budget: Budget
    met: bool
    snn: SNN
    chosen: Trial
    ann: float
    measure: str
    trials: list[Trial]
    verdict: str
    interrupted: bool = False

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the accuracy of each trial over its true latency, and the choice."""
        ax = axes_or_new(ax)
        measured = [trial for trial in self.trials if not trial.note]
        ax.scatter([trial.latency for trial in measured], [trial.accuracy for trial in measured], alpha=0.6)
        ax.scatter(self.chosen.latency, self.chosen.accuracy, marker="*", s=150, label=self.chosen.name)
        ax.axhline(self.ann, color="grey", linestyle=":", label="ANN")
        ax.set(xlabel="true latency, steps", ylabel=f"{self.measure}, %")
        ax.legend(fontsize="small")
        return ax

    def _records(self) -> list[dict[str, Any]]:
        return [trial.plain() for trial in self.trials]

    def _shown(self) -> Shown:
        rows = [trial.cells for trial in self.trials]
        return Shown(TRIED, rows, head=f"ANN: {self.ann:.2f} %", notes=self.verdict)

    def write(self, path: Path | str) -> None:
        """Write the trials and the choice as JSON; `rheobase.save` saves the network itself."""
        content = {
            "budget": asdict(self.budget),
            "ann": self.ann,
            "measure": self.measure,
            "met": self.met,
            "interrupted": self.interrupted,
            "verdict": self.verdict,
            "chosen": self.chosen.plain(),
            "trials": [trial.plain() for trial in self.trials],
            "versions": package_versions(),
        }
        replace_file(path, json.dumps(content, indent=1, sort_keys=True, default=str) + "\n")
