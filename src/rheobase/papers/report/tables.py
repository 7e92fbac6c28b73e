"""Tables of a report: measured accuracies compared with the paper, settings, profiles, energy and runs."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, variance

from rheobase.analysis import PAPER as ENERGY
from rheobase.papers import candidates
from rheobase.papers.paper import Cell, Energy, Paper, Row
from rheobase.papers.records import Record
from rheobase.papers.report.evidence import View, name_profile, rank_profile
from rheobase.papers.report.groups import Group, choose, experiments, group, side_by_side
from rheobase.reports import DASH, Line, Table, number, significant
from rheobase.simulation import PROFILES

_EARLY = (1, 2, 4)  # steps that papers leave out of their tables
_PROFILE_STEPS = tuple(2**i for i in range(10))
_MOST_OFF = {"fast": 0.1}  # points from the exact profile, at every step
WITHIN = "≈"
"""The mark of a difference within the noise."""
NOISE = (
    f"{WITHIN} marks a difference within the noise: two standard errors of our mean, from the number of test "
    "images and, where there are several training runs, from their standard deviation (±). How much "
    "printed accuracies vary between training runs is not known."
)


def own_groups(paper: Paper, cell: Cell, groups: Sequence[Group]) -> list[Group]:
    """The results for a cell's own row: the paper's training first, each in its most exact profile."""
    wanted = {"method": paper.method, "initial": paper.initial}
    found = choose(groups, model=cell.model, dataset=cell.dataset, **wanted)
    kept = []
    for label in sorted({g.first.label for g in found}):
        alike = [g for g in found if g.first.label == label]
        best = min((g.first.profile for g in alike), key=rank_profile)
        kept += choose(alike, profile=best)
    return kept


def headline(paper: Paper, cell: Cell, records: Sequence[Record]) -> Group | None:
    """The result to compare with the paper: everything as it states, and what it leaves open as chosen.

    Of several readings of the open settings that were trained on all images, it is the best one of those that
    were tried on held-out images. Until one has been chosen and measured, it is our first, without a label.
    """
    own = own_groups(paper, cell, group(r for r in records if not r.shortened))
    tried = candidates.compare(records, [c for c in paper.cells if c.dataset == cell.dataset]).gaps
    ranks = {f"{candidates.READING}{c}" if c.changes else "": -i for i, c in enumerate(tried)}
    found = [g for g in own if not g.first.label or g.first.label.startswith(candidates.READING)]

    def order(g: Group) -> tuple[float, bool, str]:
        label = g.first.label
        return ranks.get(label, -math.inf), label != "", g.first.date

    return max(found, key=order, default=None)


def find_lower(g: Group, printed: Row, steps: Sequence[int]) -> list[str]:
    """Where a result is below a printed row by more than the noise: "ANN", or the steps."""
    curve = g.curve
    after = [t for t in steps if t in curve and printed.accuracy.get(t) is not None]
    gaps = {"ANN": g.ann - printed.ann + noise(g)}
    gaps |= {f"T = {t}": curve[t] - (printed.accuracy[t] or 0.0) + noise(g, t) for t in after}
    return [name for name, gap in gaps.items() if gap < 0]


def columns_of(paper: Paper) -> dict[int, str]:
    """The columns of a paper's tables and a few earlier steps, with their headings."""
    early = {t: f"T={t}" for t in _EARLY if t < min(paper.steps)}
    return early | dict(zip(paper.steps, paper.columns, strict=True))


def cell_table(paper: Paper, cell: Cell, groups: Sequence[Group]) -> Table:
    """A block of the paper's table with the measured rows below."""
    columns, own = columns_of(paper), cell.own
    lines = [Line(row.label, printed_values(row, columns), "other", row.note) for row in cell.rows[:-1]]
    lines.append(Line(f"{own.method}, printed", printed_values(own, columns), "printed", own.note))
    notes = []
    for g in groups:
        lines.append(Line(name_line(g), measured_values(g, columns), "measured"))
        lines.append(Line("difference", differences(g, own, columns), "difference"))
        notes.append(_describe(g))
    return Table(cell.title, ("Method", "ANN", *columns.values()), tuple(lines), tuple(notes))


def name_line(g: Group) -> str:
    """The name of a measured row: how it differs from the paper's own, and the number of seeds."""
    n = len(g.records)
    words = ("measured", g.first.label, name_profile(g.first.profile), f"mean ± SD, n = {n}" if n > 1 else "")
    return ", ".join(word for word in words if word)


def spread(mean: float | None, deviation: float | None, digits: int = 2) -> str:
    """A mean over seeds with its standard deviation, if there are several."""
    shown = number(mean, digits)
    return shown if deviation is None else f"{shown} ± {number(deviation, digits)}"


def printed_values(row: Row, steps: Iterable[int], digits: int = 2) -> tuple[str, ...]:
    """A printed row: accuracy of the ANN and after each step."""
    return tuple(number(value, digits) for value in (row.ann, *(row.accuracy.get(t) for t in steps)))


def measured_values(g: Group, steps: Iterable[int], digits: int = 2) -> tuple[str, ...]:
    """A measured row: accuracy of the ANN and after each step, with its standard deviation."""
    curve, deviations = g.curve, g.deviations
    after = (spread(curve.get(t), deviations.get(t), digits) for t in steps)
    return (spread(g.ann, g.ann_deviation, digits), *after)


def differences(g: Group, printed: Row, steps: Iterable[int], digits: int = 2) -> tuple[str, ...]:
    """The difference from a printed row: of the ANN, and after each step."""
    curve = g.curve
    after = ((curve.get(t), printed.accuracy.get(t), noise(g, t)) for t in steps)
    return tuple(difference(*values, digits) for values in ((g.ann, printed.ann, noise(g)), *after))


def difference(measured: float | None, printed: float | None, noise: float, digits: int = 2) -> str:
    """Measured minus printed, in points, with a mark where that is within the noise; zero has a plus."""
    if measured is None or printed is None:
        return DASH
    gap = round(measured - printed, 2)
    return f"{gap:+z.{digits}f}".replace("-", "−") + (f" {WITHIN}" if abs(gap) <= noise else "")


def noise(g: Group, steps: int | None = None) -> float:
    """Two standard errors of a mean accuracy, in points; of the ANN's without steps."""
    found = [r.ann_accuracy if steps is None else r.accuracy.get(steps, 0.0) for r in g.records]
    return two_errors(found, g.first.images)


def two_errors(accuracies: Sequence[float], images: int) -> float:
    """Two standard errors of the mean accuracy of training runs, in points.

    The variance is that of the mean over the runs, if there are several, plus the binomial one of the test
    images. How much the runs of a paper vary is not known and not part of it.
    """
    mean, runs = fmean(accuracies), len(accuracies)
    of_runs = variance(accuracies) / runs if runs > 1 else 0.0
    return 2 * math.sqrt(of_runs + max(mean * (100 - mean), 1.0) / images)


def _describe(g: Group) -> str:
    """How a measured row was obtained."""
    r, n = g.first, len(g.records)
    seeds = f"seed {r.seed}" if n == 1 else f"mean of {n} seeds"
    devices, sources, dates = (
        " and ".join(sorted({getattr(r, name) for r in g.records})) for name in ("device", "source", "date")
    )
    parts = [
        f"Measured{f', {r.label}' if r.label else ''}: {seeds}, {r.epochs} epochs, {r.images:,} test images, "
        f"profile {r.profile}, {devices}, commit {sources}, {dates}."
    ]
    parts += [f"Shortened: {cut}." for cut in r.shortened]
    return " ".join(parts)


def study_table(cell: Cell, records: Sequence[Record]) -> Table | None:
    """Candidate settings of one network on held-out images, the longest trainings first."""
    judged = [r for r in records if "candidate" in r.extra and set(candidates.STEPS) & set(r.accuracy)]
    if not judged:
        return None
    lines = []
    for g in sorted(group(judged), key=lambda g: (-g.first.epochs, g.first.label)):
        seeds = ", ".join(str(r.seed) for r in g.records)
        values = (seeds, str(g.first.epochs), *measured_values(g, candidates.STEPS))
        lines.append(Line(str(candidates.Candidate(**g.first.extra["candidate"])), values))
    header = ("Settings", "Seeds", "Epochs", "ANN", *(f"T={t}" for t in candidates.STEPS))
    cuts = dict.fromkeys(cut for r in judged for cut in r.shortened)
    notes = tuple(f"Compared with the paper's runs: {cut}." for cut in cuts)
    return Table(cell.title, header, tuple(lines), notes)


def readings_table(title: str, cells: Sequence[Cell], records: Sequence[Record]) -> Table | None:
    """The readings of a paper's open settings by their worst difference to it; the first is chosen."""
    found = candidates.compare(records, cells)
    steps = next(iter(found.gaps.values()), {})
    lines = [
        Line(str(candidate), tuple(number(gap) for gap in (*gaps.values(), fmean(gaps.values()))))
        for candidate, gaps in found.gaps.items()
    ]
    header = ("Settings, best first", *(f"T={t}" for t in steps), "Mean")
    note = f"Tried on {', '.join(cell.title for cell in found.cells)}."
    return Table(title, header, tuple(lines), (note,)) if lines else None


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
            gap, step = _gap(g, groups[0])
            shown = DASH if g is groups[0] else f"{gap:.2f} at T={step}" if step and gap else number(gap)
            lines.append(Line(what, (g.seeds, *measured_values(g, _PROFILE_STEPS)[1:], shown)))
            most = _MOST_OFF.get(g.first.profile)
            if most is not None and gap <= most:
                notes[f"{what}: within {most:g} point of exact at every step."] = None
            elif most is not None:
                notes[f"{what}: off by {gap:.2f} points at T={step}; the limit is {most:g}."] = None
            if g.first.weights:
                notes[f"{what}: weights {g.first.weights}."] = None
    if not lines:
        return None
    header = ("Profile", "Seeds", *(f"T={t}" for t in _PROFILE_STEPS), "Largest gap to exact")
    cell, label = views[0].cell, views[0].label
    return Table(f"{cell.title}, {label}" if label else cell.title, header, tuple(lines), tuple(notes))


def _gap(g: Group, exact: Group) -> tuple[float, int]:
    """The largest difference of any network at any step, and that step."""
    gaps = [
        (round(abs(one.accuracy[t] - other.accuracy[t]), 6), -t)
        for one, other in zip(g.records, exact.records, strict=True)
        for t in one.accuracy.keys() & other.accuracy.keys()
    ]
    gap, step = max(gaps, default=(0.0, 0))
    return gap, -step


def energy_table(paper: Paper, measured: Sequence[tuple[View, Record]]) -> Table | None:
    """The energy table, printed and measured columns next to each other."""
    if not measured:
        return None
    columns = []
    for cell in paper.cells:
        columns += [
            (f"{cell.title}, printed", _printed_energy(e)) for e in paper.energy if e.cell == cell.name
        ]
        columns += [
            (f"{view.title}, measured", _measured_energy(r)) for view, r in measured if view.cell == cell
        ]
    names = (
        "Steps",
        "ANN, MFLOP",
        "SNN, MSOP, every spike into a pool counted",
        "SNN, MSOP, nonzero pooled units counted",
        "ANN, mJ",
        "SNN, mJ, by spikes",
        "SNN, mJ, by pooled units",
        "ANN ÷ SNN, by spikes",
        "ANN ÷ SNN, by pooled units",
    )
    lines = [Line(name, tuple(values[i] for _, values in columns)) for i, name in enumerate(names)]
    note = (
        "The paper does not say how it counts spikes that pass an average pool; its numbers are in the rows "
        f"by spikes. {ENERGY.citation}."
    )
    return Table("Energy per image", ("", *(name for name, _ in columns)), tuple(lines), (note,))


def _printed_energy(e: Energy) -> tuple[str, ...]:
    return (
        str(e.steps), f"{e.mflop:g}", f"{e.msop:g}", DASH, f"{e.ann_millijoules:g}", f"{e.snn_millijoules:g}",
        DASH, f"{e.ratio:g}", DASH,
    )  # fmt: skip


def _measured_energy(r: Record) -> tuple[str, ...]:
    ann, snn, sop = r.extra["ann_joules"], r.extra["snn_joules"], r.extra["sop"]
    ways = ("spikes", "pooled")
    return (
        str(r.extra["steps"]),
        f"{r.extra['flop'] / 1e6:.3f}",
        *(f"{sop[way] / 1e6:.3f}" for way in ways),
        significant(ann * 1e3),
        *(significant(snn[way] * 1e3) for way in ways),
        *(f"{ann / snn[way]:.0f}" if snn[way] else DASH for way in ways),
    )


def runs_table(records: Sequence[Record]) -> Table:
    """Every record with the environment that produced it."""
    lines = []
    for r in sorted(records, key=lambda r: r.file_name):
        steps = str(max(r.accuracy, default=0) or DASH)
        seconds = f"{r.seconds:.0f}" if r.seconds >= 10 else f"{r.seconds:.1f}"
        what = (r.table, r.model, r.dataset, r.initial, r.label or "as the paper", str(r.seed))
        size = (str(r.epochs), steps, r.profile, seconds)
        versions = ", ".join(f"{name} {version}" for name, version in r.versions.items())
        lines.append(Line(r.method, (*what, *size, r.device, versions, r.source, r.date, r.command)))
    header = (
        "Method", "For", "Model", "Dataset", "Start", "Trained", "Seed", "Epochs", "Steps", "Profile",
        "Seconds", "Device", "Versions", "Commit", "Date", "Command",
    )  # fmt: skip
    return Table("Records", header, tuple(lines))
