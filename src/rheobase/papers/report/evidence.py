"""The records of a paper, grouped by how networks were trained and simulated."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rheobase.papers import candidates
from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.papers.report.groups import Group, group
from rheobase.reports import Panel
from rheobase.simulation import PROFILES


@dataclass(frozen=True)
class View:
    """The full-length records of a cell with one training and one arithmetic: those that may be compared.

    Attributes:
        cell: The network and dataset.
        label: How it was trained, if not as in the paper.
        profile: The arithmetic of the simulation.
        weights: What was done to the weights after training, if anything.
        records: The records.
        name: Unique for every way to train a cell.
    """

    cell: Cell
    label: str
    profile: str
    weights: str
    records: tuple[Record, ...]
    name: str

    @property
    def title(self) -> str:
        """The cell, and what is unusual about it."""
        return ", ".join(word for word in (self.cell.title, self.label, self.manner) if word)

    @property
    def manner(self) -> str:
        """How it was simulated, if not as usual."""
        words = (name_profile(self.profile), f"weights {self.weights}" if self.weights else "")
        return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Evidence:
    """A paper and all its records."""

    paper: Paper
    records: Sequence[Record]

    @cached_property
    def full(self) -> list[Group]:
        """Runs at full length."""
        return group(self._full)

    @cached_property
    def shortened(self) -> list[Group]:
        """Shortened runs, except those that settings were chosen by."""
        return group(r for r in self.records if r.shortened and r.table != candidates.TABLE)

    def studies(self, cell: Cell) -> list[Record]:
        """The records that settings of a cell were chosen by, on held-out training images."""
        return [r for r in _of(cell, self.records) if r.table == candidates.TABLE]

    def views(self, cell: Cell) -> list[View]:
        """All ways to train a cell, the paper's own first; for each all simulations, exact ones first."""
        mine = _of(cell, self._full)
        found = []
        for i, label in enumerate(sorted({"", *(r.label for r in mine)})):
            alike = [r for r in mine if r.label == label]
            name = f"{cell.name}-{i}" if i else cell.name
            manners = {(r.profile, r.weights) for r in alike}
            for profile, weights in sorted(manners, key=lambda manner: (rank_profile(manner[0]), manner[1])):
                kept = tuple(r for r in alike if (r.profile, r.weights) == (profile, weights))
                found.append(View(cell, label, profile, weights, kept, name))
        return found

    def draw(self, draw: Callable[[View], Sequence[Panel]]) -> list[Panel]:
        """The panels of every way to train, in the first profile that has enough records for them."""
        panels: dict[str, Sequence[Panel]] = {}
        for view in (view for cell in self.paper.cells for view in self.views(cell)):
            if not panels.get(view.name):
                panels[view.name] = draw(view)
        return [panel for found in panels.values() for panel in found]

    @property
    def _full(self) -> list[Record]:
        return [r for r in self.records if not r.shortened and r.table != candidates.TABLE]


def rank_profile(profile: str) -> tuple[int, str]:
    """A sort key for profiles, exact first."""
    return (PROFILES.index(profile) if profile in PROFILES else len(PROFILES), profile)


def name_profile(profile: str) -> str:
    """The profile for a title; empty for the default one."""
    return "" if profile == PROFILES[0] else f"profile {profile}"


def _of(cell: Cell, records: Iterable[Record]) -> list[Record]:
    return [r for r in records if (r.model, r.dataset) == (cell.model, cell.dataset)]
