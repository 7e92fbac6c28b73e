"""What advice consists of: a budget, what was tried, and what to take."""

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from textwrap import shorten
from types import NoneType
from typing import Any

from rheobase.io import package_versions, replace_file
from rheobase.methods import Method
from rheobase.network import SNN, Start

TRIED = ("tried", "accuracy", "T", "energy", "")
"""The heads of a table of trials."""


@dataclass(frozen=True)
class Budget:
    """What a conversion may cost; whatever is not given is free.

    With a loss of accuracy alone the fewest steps are looked for; with steps or joules alone the best
    accuracy; with both kinds the first conversion that keeps to all of them is taken.

    Attributes:
        accuracy_loss: Points of accuracy below the ordinary network.
        steps: Time steps.
        joules: Energy of an image.
    """

    accuracy_loss: float | None = None
    steps: int | None = None
    joules: float | None = None

    def __post_init__(self) -> None:
        if self.accuracy_loss is None and self.steps is None and self.joules is None:
            raise ValueError("an empty budget: give accuracy_loss=, steps= or joules=")
        for name in ("accuracy_loss", "joules"):
            if not isinstance(getattr(self, name), (int, float, NoneType)):
                raise TypeError(f"{name} is a number, got {getattr(self, name)!r}")
        if self.accuracy_loss is not None and not self.accuracy_loss >= 0:
            raise ValueError(f"accuracy_loss is in points and at least 0, got {self.accuracy_loss}")
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise ValueError(f"steps must be a whole number of at least 1, got {self.steps!r}")
        if self.joules is not None and not self.joules > 0:
            raise ValueError(f"joules must be above zero, got {self.joules}")

    def __str__(self) -> str:
        parts = {
            f"a loss of {self.accuracy_loss} points": self.accuracy_loss,
            f"{self.steps} step{'' if self.steps == 1 else 's'}": self.steps,
            f"{self.joules} J": self.joules,
        }
        return " and ".join(text for text, value in parts.items() if value is not None)


@dataclass(frozen=True)
class Trial:
    """One conversion that was tried.

    Attributes:
        method: The method with its settings.
        initial: The start.
        steps: After how many steps it does best within the budget; 0 if it was not measured.
        accuracy: Percent right then, on the part of the data that was held out.
        joules: Energy of an image up to then.
        met: Whether that keeps to the budget.
        note: Why it was not measured, if it was not.
    """

    method: Method
    initial: Start
    steps: int = 0
    accuracy: float = 0.0
    joules: float = 0.0
    met: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The method, its settings where they are not the usual ones, and the start."""
        usual = type(self.method).example()
        changed = [
            f" {f.name}={getattr(self.method, f.name)}"
            for f in fields(self.method)
            if getattr(self.method, f.name) != getattr(usual, f.name)
        ]
        return f"{self.method.name}{''.join(changed)}, start {self.initial}"

    @property
    def cells(self) -> tuple[str, ...]:
        """As a row of a table with the heads `TRIED`."""
        if self.note:
            return self.name, "", "", "", shorten(self.note, 70, placeholder=" …")
        measured = f"{self.accuracy:.2f} %", str(self.steps), f"{self.joules * 1e6:.3g} µJ"
        return self.name, *measured, "met" if self.met else ""

    def plain(self) -> dict[str, Any]:
        """As values that JSON can hold."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("method", "initial")}
        settings = {name: str(value) for name, value in asdict(self.method).items()}
        return {"method": self.method.name, "settings": settings, "initial": str(self.initial), **values}

    def __str__(self) -> str:
        if self.note:
            return f"{self.name:<44} not measured: {shorten(self.note, 70, placeholder=' …')}"
        measured = f"{self.accuracy:6.2f} %  T = {self.steps:<4} {self.joules * 1e6:9.3g} µJ"
        return f"{self.name:<44} {measured}{'  met' if self.met else ''}"


@dataclass(frozen=True)
class Advice:
    """What to take.

    Attributes:
        budget: What was asked for.
        met: Whether it can be had.
        snn: The conversion that was chosen: of those that keep to the budget the best, else the nearest.
        chosen: How it was made, and how well it does.
        ann: Percent right of the ordinary network on the held-out part.
        measure: What percentages mean: "accuracy", or "agreement" with the ordinary network where the data
            has no labels.
        trials: Everything that was tried, in order.
        verdict: In words.
        interrupted: Whether the search was stopped before it was done.
    """

    budget: Budget
    met: bool
    snn: SNN = field(repr=False)
    chosen: Trial
    ann: float
    measure: str
    trials: list[Trial] = field(repr=False)
    verdict: str
    interrupted: bool = False

    def __str__(self) -> str:
        return "\n".join([f"ordinary network: {self.ann:.2f} %", *map(str, self.trials), self.verdict])

    def write(self, path: Path | str) -> None:
        """Write what was tried and chosen as JSON; the network itself is saved by `rheobase.save`."""
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
        replace_file(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
