"""Tables: measured numbers beside printed ones, and who is ahead."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rheobase.analysis import PAPER as ENERGY
from rheobase.papers.paper import Cell, Energy, Paper, Row
from rheobase.papers.records import Record
from rheobase.papers.report.evidence import View, rank_profile, tell_profile
from rheobase.papers.report.groups import Group, choose
from rheobase.reports import DASH, Line, Table, number, significant

_EARLY = (1, 2, 4)  # steps that papers leave out of their tables


@dataclass(frozen=True)
class Score:
    """How many numbers are above, below and equal to what the paper prints."""

    wins: int
    losses: int
    equal: int

    def __str__(self) -> str:
        return f"{self.wins} higher than printed, {self.losses} lower, {self.equal} equal"


def spread(mean: float | None, deviation: float | None) -> str:
    """A mean over seeds with its standard deviation, where there is one."""
    return number(mean) if deviation is None else f"{number(mean)} ± {number(deviation)}"


def difference(measured: float | None, printed: float | None) -> str:
    """How far a measured number is from a printed one, and in words who is ahead."""
    if measured is None or printed is None:
        return DASH
    gap = round(measured - printed, 2)
    if gap == 0:
        return "0.00 equal"
    return f"+{gap:.2f} win" if gap > 0 else f"−{-gap:.2f} lose"


def score(paper: Paper, groups: Sequence[Group], label: str = "") -> Score:
    """Count the cells of a paper's own lines, its ANN accuracies aside, in which we are ahead or behind.

    Args:
        paper: The paper.
        groups: What was measured.
        label: How networks were trained that count: as the paper does it unless given.
    """
    gaps = []
    for cell in paper.cells:
        for g in own_groups(paper, cell, groups):
            pairs = ((g.curve.get(t), cell.own.accuracy[t]) for t in paper.steps if g.first.label == label)
            gaps += [round(ours - theirs, 2) for ours, theirs in pairs if None not in (ours, theirs)]  # type: ignore[operator]
    return Score(sum(g > 0 for g in gaps), sum(g < 0 for g in gaps), sum(g == 0 for g in gaps))


def tell_other_scores(paper: Paper, groups: Sequence[Group]) -> list[str]:
    """The same for networks that were not trained as the paper does it, a sentence for each way."""
    own = (g for cell in paper.cells for g in own_groups(paper, cell, groups))
    labels = sorted({g.first.label for g in own} - {""})
    return [f"Trained otherwise ({label}): {score(paper, groups, label)}." for label in labels]


def own_groups(paper: Paper, cell: Cell, groups: Sequence[Group]) -> list[Group]:
    """What was measured of a cell's own line: of the paper's own training first, each in its best profile."""
    wanted = {"method": paper.method, "initial": paper.initial}
    found = choose(groups, model=cell.model, dataset=cell.dataset, **wanted)
    kept = []
    for label in sorted({g.first.label for g in found}):
        alike = [g for g in found if g.first.label == label]
        best = min((g.first.profile for g in alike), key=rank_profile)
        kept += choose(alike, profile=best)
    return kept


def columns_of(paper: Paper) -> dict[int, str]:
    """The steps of a paper's tables and a few before them, with the heads of their columns."""
    early = {t: f"T={t}" for t in _EARLY if t < min(paper.steps)}
    return early | dict(zip(paper.steps, paper.columns, strict=True))


def cell_table(paper: Paper, cell: Cell, groups: Sequence[Group]) -> Table:
    """A block of the paper's table with our lines below its own."""
    columns, own = columns_of(paper), cell.own
    lines = [Line(row.label, printed_values(row, columns), "other", row.note) for row in cell.rows[:-1]]
    lines.append(Line(f"{own.method}, printed", printed_values(own, columns), "printed", own.note))
    notes = []
    for g in groups:
        lines.append(Line(name_line(g), measured_values(g, columns), "measured"))
        lines.append(Line("difference", differences(g, own, columns), "difference"))
        notes.append(describe(g))
    return Table(cell.title, ("Method", "ANN", *columns.values()), tuple(lines), tuple(notes))


def name_line(g: Group) -> str:
    """What a measured line is called: how it differs from the paper's own, and over how many seeds it is."""
    n = len(g.records)
    words = ("measured", g.first.label, tell_profile(g.first.profile), f"mean ± SD, n = {n}" if n > 1 else "")
    return ", ".join(word for word in words if word)


def printed_values(row: Row, steps: Iterable[int]) -> tuple[str, ...]:
    """A printed line's accuracy before conversion and after some steps."""
    return (number(row.ann), *(number(row.accuracy.get(t)) for t in steps))


def differences(g: Group, printed: Row, steps: Iterable[int]) -> tuple[str, ...]:
    """How far a group is from a printed line, before conversion and after some steps."""
    curve = g.curve
    after = (difference(curve.get(t), printed.accuracy.get(t)) for t in steps)
    return (difference(g.ann, printed.ann), *after)


def measured_values(g: Group, steps: Iterable[int]) -> tuple[str, ...]:
    """A group's accuracy before conversion and after some steps, with its spread over seeds."""
    curve, deviations = g.curve, g.deviations
    after = (spread(curve.get(t), deviations.get(t)) for t in steps)
    return (spread(g.ann, g.ann_deviation), *after)


def two_errors(g: Group) -> float:
    """Two standard errors of a group's accuracy before conversion, on as many test images as it has."""
    return 200 * math.sqrt(max(g.ann * (100 - g.ann), 1.0) / 1e4 / g.first.images)


def describe(g: Group) -> str:
    """What stands behind a measured line, in one sentence or two."""
    r, n = g.first, len(g.records)
    seeds = f"seed {r.seed}" if n == 1 else f"mean of {n} seeds"
    parts = [
        f"Measured{f', {r.label}' if r.label else ''}: {seeds}, {r.epochs} epochs, {r.images:,} test images, "
        f"profile {r.profile}, {_all(g, 'device')}, commit {_all(g, 'source')}, {_all(g, 'date')}."
    ]
    if n > 1:
        parts.append(f"Standard deviation over seeds at most {max(g.deviations.values()):.2f} points.")
    parts.append(
        f"Two standard errors of the ANN's accuracy on so many images are {two_errors(g):.2f} points."
    )
    parts += [f"Cut: {cut}." for cut in r.shortened]
    return " ".join(parts)


def energy_table(paper: Paper, measured: Sequence[tuple[View, Record]]) -> Table | None:
    """The energy table, printed and measured side by side."""
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
        "SNN, MSOP, each spike counted behind a pool",
        "SNN, MSOP, pooled units that are not zero counted",
        "ANN, mJ",
        "SNN, mJ, by each spike",
        "SNN, mJ, by pooled units",
        "ANN ÷ SNN, by each spike",
        "ANN ÷ SNN, by pooled units",
    )
    lines = [Line(name, tuple(values[i] for _, values in columns)) for i, name in enumerate(names)]
    note = (
        "The paper does not say how it counts spikes behind average pooling; its numbers stand in the line "
        f"of each spike. {ENERGY.citation}."
    )
    return Table("Energy for one image", ("", *(name for name, _ in columns)), tuple(lines), (note,))


def runs_table(records: Sequence[Record]) -> Table:
    """What ran where, one line for each record."""
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


def _all(g: Group, name: str) -> str:
    """What the records of a group have in a field, each once."""
    return " and ".join(sorted({getattr(r, name) for r in g.records}))


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
