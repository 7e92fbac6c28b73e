"""Settings other than a paper's own, chosen on images held out of the training set.

Every candidate is trained on the rest and measured on the held-out images, never on test images. The best
one is then trained on all training images and reported with a label, next to the paper's own settings.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Any

from rheobase.methods import Method
from rheobase.papers.paper import Cell
from rheobase.papers.records import Record
from rheobase.training import Recipe

TABLE = "study"
"""The table of a candidate's record."""

READING = "reading chosen on held-out images: "
"""How the label of a network begins that was trained with a chosen reading of the open settings."""

STEPS = (8, 16, 32)
"""The steps at which candidates are judged, by their mean accuracy."""


@dataclass(frozen=True)
class Candidate:
    """Settings to try; None means the paper's own.

    Attributes:
        clip_decay: L2 penalty on the trained thresholds.
        start: Initial value of the trained thresholds.
        batch_size: Images per step.
        learning_rate: The largest learning rate.
        weight_decay: L2 penalty on the weights.
    """

    clip_decay: float | None = None
    start: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        if self.start is not None and not 0 < self.start < math.inf:
            raise ValueError(f"start must be above 0 and finite, got {self.start}")

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.changes.items()) or "the paper's own"

    @classmethod
    def parse(cls, text: str) -> "Candidate":
        """A candidate from `own`, or from settings such as `clip_decay=0.002,batch_size=64`.

        Raises:
            ValueError: There is no such setting, it is there twice, or its value is not a number.
        """
        kinds = {field.name: int if field.name == "batch_size" else float for field in fields(cls)}
        values: dict[str, Any] = {}
        for pair in [] if text == "own" else text.split(","):
            name, _, value = pair.partition("=")
            try:
                if name in values:
                    raise ValueError
                values[name] = kinds[name](value)
            except (KeyError, ValueError):
                raise ValueError(
                    f"{text!r} is not a candidate: give own, or numbers for {', '.join(kinds)}, such as "
                    "clip_decay=0.002,batch_size=64"
                ) from None
        return cls(**values)

    @property
    def text(self) -> str:
        """What `parse` reads."""
        return ",".join(f"{name}={value}" for name, value in self.changes.items()) or "own"

    @property
    def changes(self) -> dict[str, Any]:
        """What is not as in the paper."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def adapt(self, recipe: Recipe, method: Method) -> tuple[Recipe, Method]:
        """Training and method with these settings."""
        of_method = {"start": self.start} if self.start is not None else {}
        of_recipe = {name: value for name, value in self.changes.items() if name not in of_method}
        return replace(recipe, **of_recipe), replace(method, **of_method)


CANDIDATES = (
    Candidate(),
    Candidate(clip_decay=1e-3),
    Candidate(clip_decay=2e-3),
    Candidate(clip_decay=5e-3),
    Candidate(start=2.0),
    Candidate(start=8.0),
    Candidate(batch_size=64),
    Candidate(batch_size=256),
    Candidate(clip_decay=2e-3, start=2.0),
    Candidate(clip_decay=2e-3, start=8.0),
    Candidate(start=2.0, batch_size=64),
    Candidate(learning_rate=0.1),
    Candidate(learning_rate=0.1, weight_decay=1e-4),
)
"""The default candidates: most settings alone, and four pairs."""


def distinct(candidates: Sequence[Candidate], recipe: Recipe, method: Method) -> list[Candidate]:
    """Leave out candidates with the same training as an earlier one, and settings that equal the paper's.

    Raises:
        ValueError: A candidate has invalid settings.
    """
    own = asdict(recipe) | asdict(method)
    found: dict[tuple[Recipe, Method], Candidate] = {}
    for candidate in candidates:
        changes = {name: value for name, value in candidate.changes.items() if value != own[name]}
        found.setdefault(candidate.adapt(recipe, method), Candidate(**changes))
    return list(found.values())


def choose(measured: Iterable[Record], cell: Cell) -> Candidate:
    """The candidate with the best mean accuracy on held-out images, over `STEPS` and all seeds.

    Only the longest trainings count, and of these the ones that were shortened least.

    Raises:
        ValueError: None has been measured for this cell.
    """
    wanted = (TABLE, cell.model, cell.dataset)
    found = [r for r in measured if (r.table, r.model, r.dataset) == wanted]
    if not found:
        raise ValueError(
            f"no settings of {cell.name} have been measured on held-out images: run `rheobase reproduce "
            f"PAPER {cell.name} --study` or rheobase.papers.reproduction.select first"
        )
    scores: dict[Candidate, list[float]] = {}
    fullest = max(map(_fullness, found))
    for r in found:
        if _fullness(r) == fullest:
            score = fmean(r.accuracy[t] for t in STEPS if t in r.accuracy)
            scores.setdefault(Candidate(**r.extra["candidate"]), []).append(score)
    # Of equal ones the nearest to the paper's own.
    ordered = sorted(scores, key=lambda candidate: (len(candidate.changes), str(candidate)))
    return max(ordered, key=lambda candidate: fmean(scores[candidate]))


def _fullness(record: Record) -> tuple[int, int, int]:
    """How complete a training was: its epochs, the number of other cuts, and its images."""
    return record.epochs, -len(record.shortened), record.images
