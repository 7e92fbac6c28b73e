"""Tables: measured numbers beside printed ones, and who is ahead."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rheobase.energy import PAPER as ENERGY
from rheobase.papers import Cell, Energy, Paper
from rheobase.records import Record
from rheobase.reports.groups import Group, choose, join

DASH = "–"


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        label: What it is about.
        values: One text for each further column.
        kind: "printed", "measured", "difference", "other" for another method's, or "plain"; for its looks.
        note: A remark.
    """

    label: str
    values: tuple[str, ...]
    kind: str = "plain"
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table as text.

    Attributes:
        title: What it shows.
        header: The names of its columns.
        lines: The rest.
        notes: Remarks below it.
    """

    title: str
    header: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Score:
    """How many numbers are above, below and equal to what the paper prints."""

    wins: int
    losses: int
    equal: int

    def __str__(self) -> str:
        return f"{self.wins} higher than printed, {self.losses} lower, {self.equal} equal"


def number(value: float | None, digits: int = 2) -> str:
    """A number as text, a dash where there is none."""
    return DASH if value is None else f"{value:.{digits}f}".replace("-", "−")


def difference(measured: float | None, printed: float | None) -> str:
    """How far a measured number is from a printed one, and in words who is ahead."""
    if measured is None or printed is None:
        return DASH
    gap = round(measured - printed, 2)
    if gap == 0:
        return "0.00 equal"
    return f"+{gap:.2f} win" if gap > 0 else f"−{-gap:.2f} lose"


def score(paper: Paper, groups: Sequence[Group]) -> Score:
    """Count the cells of a paper's own lines, its ANN accuracies aside, in which we are ahead or behind."""
    gaps = []
    for cell in paper.cells:
        for g in own_groups(paper, cell, groups):
            pairs = ((g.curve.get(t), cell.own.accuracy[t]) for t in paper.steps)
            gaps += [round(ours - theirs, 2) for ours, theirs in pairs if None not in (ours, theirs)]  # type: ignore[operator]
    return Score(sum(g > 0 for g in gaps), sum(g < 0 for g in gaps), sum(g == 0 for g in gaps))


def own_groups(paper: Paper, cell: Cell, groups: Sequence[Group]) -> list[Group]:
    """What was measured of a cell's own line."""
    wanted = {"method": paper.method, "initial": paper.initial}
    return choose(groups, model=cell.model, dataset=cell.dataset, **wanted)


def cell_table(paper: Paper, cell: Cell, groups: Sequence[Group]) -> Table:
    """A block of the paper's table with our lines below its own."""
    lines = [
        Line(row.label, _values(row.ann, row.accuracy, paper.steps), "other", row.note)
        for row in cell.rows[:-1]
    ]
    own = cell.own
    lines.append(Line("printed", _values(own.ann, own.accuracy, paper.steps), "printed", own.note))
    notes = []
    for g in groups:
        curve = g.curve
        lines.append(Line("measured", _values(g.ann, dict(curve), paper.steps), "measured"))
        gaps = (difference(g.ann, own.ann), *(difference(curve.get(t), own.accuracy[t]) for t in paper.steps))
        lines.append(Line("difference", gaps, "difference"))
        notes.append(describe(g))
    return Table(cell.title, ("Method", "ANN", *paper.columns), tuple(lines), tuple(notes))


def describe(g: Group) -> str:
    """What stands behind a measured line, in one sentence or two."""
    r, n = g.first, len(g.records)
    seeds = f"seed {r.seed}" if n == 1 else f"mean of {n} seeds"
    error = 200 * math.sqrt(max(g.ann * (100 - g.ann), 1.0) / 1e4 / r.images)
    parts = [
        f"Measured: {seeds}, {r.epochs} epochs, {r.images:,} test images, {r.device}, "
        f"commit {r.commit[:12]}, {r.date}."
    ]
    if g.spread is not None:
        parts.append(f"Standard deviation over seeds at most {g.spread:.2f} points.")
    parts.append(f"Two standard errors of the ANN's accuracy on so many images are {error:.2f} points.")
    parts += [f"Cut: {cut}." for cut in r.shortened]
    return " ".join(parts)


def methods_table(cell_title: str, groups: Sequence[Group], steps: Sequence[int]) -> Table:
    """Every method from its starts on one trained network."""
    curves = join(groups)
    lines = [
        Line(method, (initial, *(number(curves[method, initial].get(t)) for t in steps)))
        for method, initial in sorted(curves, key=lambda key: (key[0], key[1] != "zero", key[1]))
    ]
    ann = number(groups[0].ann)
    header = ("Method", "Start", *(f"T={t}" for t in steps))
    note = f"All on one network, trained for the paper's own method; its accuracy before conversion is {ann}."
    return Table(cell_title, header, tuple(lines), (note,))


def claims_table(paper: Paper, groups: Sequence[Group]) -> Table | None:
    """What the paper says its start adds to other methods, beside what was measured anywhere."""
    lines = []
    for claim in paper.claims:
        cell = paper.cell(claim.cell)
        printed = f"{claim.zero:g} → {claim.half:g} ({claim.half - claim.zero:+g})"
        gains = [
            f"{other.title}: {gain}"
            for other in paper.cells
            if (gain := _gain(groups, other, claim.method, claim.steps))
        ]
        values = (cell.title, f"T={claim.steps}", printed, "; ".join(gains) or DASH)
        lines.append(Line(claim.label, values))
    if not any(line.values[-1] != DASH for line in lines):
        return None
    note = (
        "The paper trained a network for each of these methods; measured is on the one trained for its own."
    )
    header = ("Method", "Printed for", "Steps", "Printed, zero → half", "Measured, zero → half")
    return Table("The start at half the threshold with other methods", header, tuple(lines), (note,))


def energy_table(paper: Paper, records: Sequence[Record]) -> Table | None:
    """The energy table, printed and measured side by side."""
    titles = {(cell.model, cell.dataset): cell.title for cell in paper.cells}
    if not records:
        return None
    columns = [(f"{paper.cell(e.cell).title}, printed", _printed_energy(e)) for e in paper.energy]
    columns += [(f"{titles[r.model, r.dataset]}, measured", _measured_energy(r)) for r in records]
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
        what = (r.table, r.model, r.dataset, r.initial, str(r.seed), str(r.epochs), steps, seconds)
        versions = ", ".join(f"{name} {version}" for name, version in r.versions.items())
        lines.append(Line(r.method, (*what, r.device, versions, r.commit[:12], r.date, r.command)))
    header = (
        "Method", "For", "Model", "Dataset", "Start", "Seed", "Epochs", "Steps", "Seconds", "Device",
        "Versions", "Commit", "Date", "Command",
    )  # fmt: skip
    return Table("Records", header, tuple(lines))


def _values(ann: float, accuracy: dict[int, float | None], steps: Sequence[int]) -> tuple[str, ...]:
    return (number(ann), *(number(accuracy.get(t)) for t in steps))


def _gain(groups: Sequence[Group], cell: Cell, method: str, steps: int) -> str:
    curves = join(choose(groups, model=cell.model, dataset=cell.dataset, method=method))
    zero, half = (curves.get((method, start), {}).get(steps) for start in ("zero", "half"))
    if zero is None or half is None:
        return ""
    return f"{zero:.2f} → {half:.2f} ({half - zero:+.2f})".replace("-", "−")


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
        f"{ann * 1e3:.3g}",
        *(f"{snn[way] * 1e3:.3g}" for way in ways),
        *(f"{ann / snn[way]:.0f}" if snn[way] else DASH for way in ways),
    )
