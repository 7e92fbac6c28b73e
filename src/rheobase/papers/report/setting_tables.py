"""Tables of settings: those chosen on held-out images, and the profiles of the simulation."""

from collections.abc import Sequence
from statistics import fmean

from rheobase.papers import candidates
from rheobase.papers.paper import Cell
from rheobase.papers.records import Record
from rheobase.papers.report.evidence import View, rank_profile
from rheobase.papers.report.groups import Group, experiments, group, side_by_side
from rheobase.papers.report.tables import measured_values
from rheobase.reports import DASH, Line, Table, number
from rheobase.simulation import PROFILES

_MOST_OFF = {"fast": 0.1}  # points from the exact profile, at every step
_COLUMNS = tuple(2**i for i in range(10))


def study_table(cell: Cell, records: Sequence[Record]) -> Table | None:
    """Candidate settings on held-out images, the best first, and which of them was chosen."""
    judged = [r for r in records if "candidate" in r.extra and set(candidates.STEPS) & set(r.accuracy)]
    if not judged:
        return None
    chosen = candidates.choose(judged, cell)
    longest = max(r.epochs for r in judged)
    lines = []
    for g in sorted(group(judged), key=lambda g: (-g.first.epochs, -_mean(g))):
        candidate = candidates.Candidate(**g.first.extra["candidate"])
        seeds = ", ".join(str(r.seed) for r in g.records)
        values = (seeds, str(g.first.epochs), *measured_values(g, candidates.STEPS), number(_mean(g)))
        best = candidate == chosen and g.first.epochs == longest
        lines.append(
            Line(f"{candidate}, chosen" if best else str(candidate), values, "measured" if best else "plain")
        )
    header = ("Settings", "Seeds", "Epochs", "ANN", *(f"T={t}" for t in candidates.STEPS), "Mean")
    cuts = dict.fromkeys(cut for r in judged for cut in r.shortened)
    notes = (
        f"{judged[0].images:,} held-out images each. The best mean is chosen, of those trained longest.",
        *(f"Against the paper's own runs: {cut}." for cut in cuts),
    )
    return Table(cell.title, header, tuple(lines), notes)


def profiles_table(views: Sequence[View]) -> Table | None:
    """One way to train a cell in all profiles it was run in, if there are several."""
    records = [r for view in views for r in view.records if r.accuracy]
    lines: list[Line] = []
    notes: dict[str, None] = {}
    for alike in experiments(records, "profile"):
        groups = sorted(side_by_side(alike), key=lambda g: rank_profile(g.first.profile))
        if len(groups) < 2 or groups[0].first.profile != PROFILES[0]:
            continue
        for g in groups:
            what = f"{g.first.method}, {g.first.initial}, {g.first.profile}"
            lines.append(Line(what, (g.seeds, *measured_values(g, _COLUMNS)[1:], _tell_gap(g, groups[0]))))
            if promise := _judge(g, groups[0]):
                notes[f"{what}: {promise}"] = None
            if g.first.weights:
                notes[f"{what}: weights {g.first.weights}."] = None
    if not lines:
        return None
    header = ("Profile", "Seeds", *(f"T={t}" for t in _COLUMNS), "Largest gap to exact")
    cell, label = views[0].cell, views[0].label
    return Table(f"{cell.title}, {label}" if label else cell.title, header, tuple(lines), tuple(notes))


def _mean(g: Group) -> float:
    return fmean(g.curve[t] for t in candidates.STEPS if t in g.curve)


def _gap(g: Group, exact: Group) -> tuple[float, int]:
    """The largest difference of any network at any step, and that step."""
    gaps = [
        (round(abs(one.accuracy[t] - other.accuracy[t]), 6), -t)
        for one, other in zip(g.records, exact.records, strict=True)
        for t in one.accuracy.keys() & other.accuracy.keys()
    ]
    gap, step = max(gaps, default=(0.0, 0))
    return gap, -step


def _tell_gap(g: Group, exact: Group) -> str:
    gap, step = _gap(g, exact)
    return DASH if g is exact else f"{gap:.2f} at T={step}" if step and gap else number(gap)


def _judge(g: Group, exact: Group) -> str:
    most = _MOST_OFF.get(g.first.profile)
    if most is None:
        return ""
    gap, step = _gap(g, exact)
    if gap <= most:
        return f"within {most:g} point of exact at every step."
    return f"off by {gap:.2f} points at T={step}, more than the {most:g} that it should stay within."
