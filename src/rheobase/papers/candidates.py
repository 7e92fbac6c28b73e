"""Settings that a paper leaves open or that differ from its own, tried on held-out training images.

Every candidate is trained on the rest and measured on the held-out images, never on test images. A reading
is a candidate that keeps everything that the paper states. The best one is then trained on all training
images.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean
from typing import Any

from rheobase.io import find_name
from rheobase.methods import Method
from rheobase.papers.paper import Cell
from rheobase.papers.records import Record
from rheobase.simulation import PROFILES
from rheobase.training import Recipe, models

TABLE = "study"
"""The table of a candidate's record."""

READING = "reading chosen on held-out images: "
"""How the label of a network begins that was trained with a chosen reading of the open settings."""

STEPS = (8, 16, 32, 64, 128)
"""The steps at which readings are judged."""

STATED = {"clip_decay", "learning_rate", "weight_decay"}
"""The settings of a candidate that the paper states."""


@dataclass(frozen=True)
class Candidate:
    """Settings to try; None means the paper's own, or ours where it states none.

    Attributes:
        clip_decay: L2 penalty on the trained thresholds.
        start: Initial value of the trained thresholds.
        batch_size: Images per step.
        learning_rate: The largest learning rate.
        weight_decay: L2 penalty on the weights.
        warmup_epochs: Epochs over which the learning rate grows.
        decayed: What the penalty on the weights acts on: all, layers or kernels.
        cutout: Whether squares are cut out before or after normalising.
        label_smoothing: Share of the target spread over all classes.
        precision: Of activations and gradients.
        initial_weights: Where the weights start: kaiming or torch; see `models.INITIAL_WEIGHTS`.
    """

    clip_decay: float | None = None
    start: float | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup_epochs: int | None = None
    decayed: str | None = None
    cutout: str | None = None
    label_smoothing: float | None = None
    precision: str | None = None
    initial_weights: str | None = None

    def __post_init__(self) -> None:
        if self.start is not None and not 0 < self.start < math.inf:
            raise ValueError(f"start must be above 0 and finite, got {self.start}")
        if self.initial_weights is not None:
            find_name("initial weights", self.initial_weights, models.INITIAL_WEIGHTS)

    def __str__(self) -> str:
        words = (f"{n} {v if isinstance(v, str) else f'{v:g}'}" for n, v in self.changes.items())
        return ", ".join(words) or "the paper's own"

    @classmethod
    def parse(cls, text: str) -> "Candidate":
        """A candidate from `own`, or from settings such as `clip_decay=0.002,batch_size=64`.

        Raises:
            ValueError: There is no such setting, it is there twice, or its value is missing or no number.
        """
        kinds = {field.name: _KINDS[str(field.type).partition(" ")[0]] for field in fields(cls)}
        values: dict[str, Any] = {}
        for pair in [] if text == "own" else text.split(","):
            name, _, value = pair.partition("=")
            try:
                if name in values or not value:
                    raise ValueError
                values[name] = kinds[name](value)
            except (KeyError, ValueError):
                raise ValueError(
                    f"{text!r} is not a candidate: give own, or values for {', '.join(kinds)}, such as "
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

    @property
    def is_reading(self) -> bool:
        """Whether it changes only what the paper leaves open."""
        return not self.changes.keys() & STATED

    def fitting(self, method: Method) -> "Candidate":
        """Without what the method has no setting for."""
        return self if "start" in {f.name for f in fields(method)} else replace(self, start=None)

    def adapt(self, recipe: Recipe, method: Method) -> tuple[Recipe, Method]:
        """Training and method with these settings."""
        of_recipe = {n: v for n, v in self.changes.items() if n not in ("start", "initial_weights")}
        return replace(recipe, **of_recipe), self.adapt_method(method)

    def adapt_method(self, method: Method) -> Method:
        """The method with these settings."""
        of_method: dict[str, Any] = {} if self.start is None else {"start": self.start}
        return replace(method, **of_method)

    @property
    def of_network(self) -> dict[str, Any]:
        """The settings that the network is built with."""
        return {} if self.initial_weights is None else {"initial_weights": self.initial_weights}


_KINDS: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "str": str}

CANDIDATES = (
    Candidate(),
    *(Candidate(batch_size=size) for size in (32, 64, 256)),
    *(Candidate(start=start) for start in (1.0, 2.0, 8.0)),
    Candidate(warmup_epochs=5),
    Candidate(decayed="layers"),
    Candidate(cutout="before"),
    Candidate(label_smoothing=0.1),
    Candidate(precision="float32"),
    Candidate(initial_weights="torch"),
    Candidate(start=2.0, batch_size=64),
)
"""The default candidates: readings with one change, and a pair."""


def distinct(candidates: Sequence[Candidate], recipe: Recipe, method: Method) -> list[Candidate]:
    """Leave out candidates with the same training as an earlier one, and settings that equal the paper's.

    Raises:
        ValueError: A candidate has invalid settings.
    """
    own = asdict(recipe) | asdict(method) | {"initial_weights": "kaiming"}
    found: dict[Candidate, None] = {}
    for candidate in candidates:
        candidate.adapt(recipe, method)  # refuses invalid settings
        found[Candidate(**{n: v for n, v in candidate.changes.items() if v != own[n]})] = None
    return list(found)


@dataclass(frozen=True)
class Readings:
    """Readings that were tried on the same networks.

    Attributes:
        cells: The networks.
        gaps: The readings, best first, and for each the worst difference to the paper by steps.
    """

    cells: tuple[Cell, ...]
    gaps: dict[Candidate, dict[int, float]]


def compare(measured: Iterable[Record], cells: Sequence[Cell]) -> Readings:
    """The readings tried on networks.

    Only trainings at full length count, and only the most exact profile that any was measured in. Readings
    are compared on the largest set of networks on which at least two were tried; those that were not tried on
    all of these do not count, because a worst of fewer is no comparison. Seeds count by their mean. The best
    has the largest mean over the steps, and of equal ones the fewest changes.
    """
    printed = {(cell.model, cell.dataset): cell.own.accuracy for cell in cells}
    # One cut is that of the held-out images; any other makes it a trial, as do fewer steps.
    full = [
        r
        for r in measured
        if r.table == TABLE and (r.model, r.dataset) in printed
        if len(r.shortened) == 1 and r.steps >= max(STEPS) and Candidate(**r.extra["candidate"]).is_reading
    ]
    profile = min((r.profile for r in full), key=PROFILES.index, default=PROFILES[0])
    found: dict[Candidate, dict[tuple[str, str], list[Record]]] = {}
    for r in full:
        if r.profile == profile:
            by_network = found.setdefault(Candidate(**r.extra["candidate"]), {})
            by_network.setdefault((r.model, r.dataset), []).append(r)
    networks = _find_shared([frozenset(tried) for tried in found.values()])
    steps = [t for t in STEPS if all(printed[network].get(t) is not None for network in networks)]

    def worst(tried: Mapping[tuple[str, str], Sequence[Record]], t: int) -> float:
        return min(fmean(r.accuracy[t] for r in tried[n]) - (printed[n][t] or 0.0) for n in networks)

    gaps = {c: {t: worst(tried, t) for t in steps} for c, tried in found.items() if tried.keys() >= networks}
    best = sorted(gaps, key=lambda c: (-fmean(gaps[c].values()), len(c.changes), str(c)))
    tried = tuple(cell for cell in cells if (cell.model, cell.dataset) in networks)
    return Readings(tried, {candidate: gaps[candidate] for candidate in best})


def _find_shared(tried: Sequence[frozenset[tuple[str, str]]]) -> frozenset[tuple[str, str]]:
    """Of sets of networks, one for each reading, the largest that two readings share."""

    def rank(networks: frozenset[tuple[str, str]]) -> tuple[bool, int, int, list[tuple[str, str]]]:
        readings = sum(other >= networks for other in tried)
        return readings > 1, len(networks), readings, sorted(networks)

    return max(
        (one & other for one in tried for other in tried if one & other), key=rank, default=frozenset()
    )


def choose(measured: Iterable[Record], cells: Sequence[Cell]) -> Candidate:
    """The best reading for all of these networks; see `compare`.

    Raises:
        ValueError: None has been tried at full length.
    """
    found = compare(measured, cells).gaps
    if not found:
        raise ValueError(
            f"no settings have been tried at full length on {', '.join(cell.name for cell in cells)}: run "
            f"`rheobase reproduce PAPER {cells[0].name} --study` or rheobase.papers.reproduction.select first"
        )
    return next(iter(found))
