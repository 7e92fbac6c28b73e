"""Records of one experiment, with the results of several seeds combined."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields

from rheobase.papers.records import Record
from rheobase.training import Recipe

_SAME = (
    0.05  # points: accuracies of one network on two devices differ by less, those of two trainings by more
)


@dataclass(frozen=True)
class Group:
    """The same experiment on one or more trained networks; its numbers are means over them.

    Attributes:
        records: One record per network.
    """

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """A record for what all have in common."""
        return self.records[0]

    @property
    def ann(self) -> float:
        """Accuracy of the ANN."""
        return statistics.fmean(record.ann_accuracy for record in self.records)

    @property
    def ann_deviation(self) -> float | None:
        """Its standard deviation over seeds; None for a single seed."""
        return _deviation([record.ann_accuracy for record in self.records])

    @property
    def curve(self) -> dict[int, float]:
        """Accuracy after each step that all seeds were run for."""
        shared = set.intersection(*(set(record.accuracy) for record in self.records))
        return {t: statistics.fmean(r.accuracy[t] for r in self.records) for t in sorted(shared)}

    @property
    def deviations(self) -> dict[int, float]:
        """Its standard deviations over seeds; empty for a single seed."""
        found = {t: _deviation([r.accuracy[t] for r in self.records]) for t in self.curve}
        return {t: deviation for t, deviation in found.items() if deviation is not None}

    @property
    def seeds(self) -> str:
        """The seeds as text."""
        if len(self.records) == 1:
            return f"seed {self.first.seed}"
        return f"mean of seeds {', '.join(str(record.seed) for record in self.records)}"


def group(records: Iterable[Record]) -> list[Group]:
    """Combine the seeds of each experiment; of one measured twice the first counts, see `experiments`.

    Records without accuracies are left out.
    """
    found = []
    for experiment in experiments(r for r in records if r.accuracy):
        seeds: dict[int, Record] = {}
        for record in experiment:
            seeds.setdefault(record.seed, record)
        found.append(Group(tuple(seeds.values())))
    return found


def side_by_side(records: Iterable[Record]) -> list[Group]:
    """Group experiments that will be compared, all on the same trained networks.

    Comparing a mean over seeds with a single seed, or with a network that was trained again, would show how
    networks differ. So only the networks that most experiments were made on count, and these experiments.
    """
    found = experiments(records)
    networks: list[Record] = []
    for record in sorted((r for experiment in found for r in experiment), key=lambda r: (r.seed, _order(r))):
        if not any(_is_same_network(record, known) for known in networks):
            networks.append(record)
    if not networks:
        return []
    on = [{i for i, e in enumerate(found) if _find(e, network) is not None} for network in networks]
    most = max(on, key=len)
    shared = [network for network, members in zip(networks, on, strict=True) if members >= most]
    pairs = ((i, [_find(found[i], network) for network in shared]) for i in sorted(most))
    return [Group(tuple(r for r in kept if r is not None)) for _, kept in pairs]


def experiments(records: Iterable[Record], *apart_from: str) -> list[list[Record]]:
    """Records by what was measured, whatever the seed and the table.

    For each seed, unchanged weights come first, then the longest run.

    Args:
        records: The records.
        *apart_from: Further fields in which records of one experiment may differ.
    """
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r.seed, r.weights, -len(r.accuracy), _order(r))):
        found.setdefault(_experiment(record, apart_from), []).append(record)
    return [found[name] for name in sorted(found)]


def choose(groups: Sequence[Group], **wanted: str) -> list[Group]:
    """The groups whose records have these values."""
    return [g for g in groups if all(getattr(g.first, name) == value for name, value in wanted.items())]


def _find(records: Sequence[Record], network: Record) -> Record | None:
    return next((r for r in records if _is_same_network(r, network)), None)


def _is_same_network(one: Record, other: Record) -> bool:
    alike = abs(one.ann_accuracy - other.ann_accuracy) <= _SAME
    return alike and (one.seed, one.weights) == (other.seed, other.weights)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _order(record: Record) -> str:
    return json.dumps([record.identity, record.commit, record.date], sort_keys=True)


def _experiment(record: Record, apart_from: Sequence[str]) -> str:
    """What records of one experiment share: their identity without the seed and the table."""
    identity = {"profile": record.profile} | record.identity
    for name in ("seed", "table", *apart_from):
        del identity[name]
    # Settings that recipes have got since were as the defaults are.
    recipe = {f.name: f.default for f in fields(Recipe) if f.default is not MISSING} | identity[
        "settings"
    ].get("recipe", {})
    for name in ("seed", "deterministic"):  # neither is a setting of a paper
        recipe.pop(name, None)
    identity["settings"] = {**identity["settings"], "recipe": recipe}
    return json.dumps(identity, sort_keys=True)
