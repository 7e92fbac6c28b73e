"""Records of one experiment, with several seeds taken together."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rheobase.records import Record


@dataclass(frozen=True)
class Group:
    """The same experiment with one or more seeds; its numbers are means over them.

    Attributes:
        records: One record for each seed.
    """

    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The record that stands for what all have in common."""
        return self.records[0]

    @property
    def ann(self) -> float:
        """Percent right before conversion."""
        return statistics.fmean(record.ann_accuracy for record in self.records)

    @property
    def curve(self) -> dict[int, float]:
        """Percent right after each step that all seeds were run for."""
        shared = set.intersection(*(set(record.accuracy) for record in self.records))
        return {t: statistics.fmean(r.accuracy[t] for r in self.records) for t in sorted(shared)}

    @property
    def spread(self) -> float | None:
        """The largest standard deviation over seeds, of any step; None for a single seed."""
        if len(self.records) == 1:
            return None
        return max(statistics.stdev(r.accuracy[t] for r in self.records) for t in self.curve)


def group(records: Iterable[Record]) -> list[Group]:
    """Take the seeds of each experiment together; of one measured twice the longer run counts.

    Records without accuracies, all of whose content is extra, are left out.
    """
    found: dict[str, dict[int, Record]] = {}
    for record in sorted((r for r in records if r.accuracy), key=_order):
        seeds = found.setdefault(_experiment(record), {})
        known = seeds.get(record.seed)
        if known is None or len(record.accuracy) > len(known.accuracy):
            seeds[record.seed] = record
    return [Group(tuple(seeds[seed] for seed in sorted(seeds))) for _, seeds in sorted(found.items())]


def choose(groups: Sequence[Group], **wanted: str) -> list[Group]:
    """Those groups whose records have these values."""
    return [g for g in groups if all(getattr(g.first, name) == value for name, value in wanted.items())]


def join(groups: Iterable[Group]) -> dict[tuple[str, str], dict[int, float]]:
    """The curve of each (method, start); one converted anew for each number of steps has many groups."""
    curves: dict[tuple[str, str], dict[int, float]] = {}
    for g in groups:
        curves.setdefault((g.first.method, g.first.initial), {}).update(g.curve)
    return curves


def _order(record: Record) -> str:
    return json.dumps([record.identity, record.commit, record.date], sort_keys=True)


def _experiment(record: Record) -> str:
    """What records of one experiment share: their identity but for the seed and where they are shown."""
    identity = record.identity
    del identity["seed"], identity["table"]
    recipe = dict(identity["settings"].get("recipe", {}))
    recipe.pop("seed", None)
    identity["settings"] = {**identity["settings"], "recipe": recipe}
    return json.dumps(identity, sort_keys=True)
