"""What was measured for a paper, sorted by how networks were trained and simulated."""

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
    """A cell's records at full length, of one way to train and one arithmetic: what may stand side by side.

    Attributes:
        cell: The network and dataset.
        label: In words how it was trained, where that is not as the paper does it.
        profile: The arithmetic of the simulation.
        weights: In words what was done to the weights after training, if anything.
        records: What was measured.
        name: Different for every way to train a cell.
    """

    cell: Cell
    label: str
    profile: str
    weights: str
    records: tuple[Record, ...]
    name: str

    @property
    def title(self) -> str:
        """The cell, and what is not usual about it."""
        return ", ".join(word for word in (self.cell.title, self.label, self.manner) if word)

    @property
    def manner(self) -> str:
        """How it was simulated, where that is not the usual way."""
        words = (tell_profile(self.profile), f"weights {self.weights}" if self.weights else "")
        return ", ".join(word for word in words if word)


@dataclass(frozen=True)
class Evidence:
    """A paper and every record of it.

    Attributes:
        paper: The paper.
        records: What was measured.
    """

    paper: Paper
    records: Sequence[Record]

    @cached_property
    def full(self) -> list[Group]:
        """Runs at full length."""
        return group(self._full)

    @cached_property
    def shortened(self) -> list[Group]:
        """Runs in which something was cut, those to choose settings by aside."""
        return group(r for r in self.records if r.shortened and r.table != candidates.TABLE)

    def studies(self, cell: Cell) -> list[Record]:
        """What settings were chosen by, on images held out of the training set."""
        return [r for r in _of(cell, self.records) if r.table == candidates.TABLE]

    def views(self, cell: Cell) -> list[View]:
        """All ways to train a cell, the paper's own first; of each all simulations, the exact ones first."""
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
        """Draw something for every way to train, in the first profile that has enough for it."""
        panels: dict[str, Sequence[Panel]] = {}
        for view in (view for cell in self.paper.cells for view in self.views(cell)):
            if not panels.get(view.name):
                panels[view.name] = draw(view)
        return [panel for found in panels.values() for panel in found]

    @property
    def _full(self) -> list[Record]:
        return [r for r in self.records if not r.shortened and r.table != candidates.TABLE]


def rank_profile(profile: str) -> tuple[int, str]:
    """Sorts profiles, the exact one first."""
    return (PROFILES.index(profile) if profile in PROFILES else len(PROFILES), profile)


def tell_profile(profile: str) -> str:
    """A profile in words; nothing where it is the usual one."""
    return "" if profile == PROFILES[0] else f"profile {profile}"


def _of(cell: Cell, records: Iterable[Record]) -> list[Record]:
    return [r for r in records if (r.model, r.dataset) == (cell.model, cell.dataset)]
