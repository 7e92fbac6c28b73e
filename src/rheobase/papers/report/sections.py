"""What a report says about one paper, section by section."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.papers.report import tables
from rheobase.papers.report.evidence import Evidence
from rheobase.papers.report.groups import Group, side_by_side
from rheobase.papers.report.method_sections import tell_gains, tell_methods
from rheobase.papers.report.setting_tables import profiles_table, study_table
from rheobase.papers.report.start_sections import tell_constants, tell_delays, tell_starts
from rheobase.reports import Curve, Panel, Section, draw_curves


@dataclass(frozen=True)
class Account:
    """What a report says about one paper."""

    title: str
    citation: str
    verdict: str
    sections: tuple[Section, ...]


def account(paper: Paper, records: Sequence[Record]) -> Account:
    """Everything a report says about a paper."""
    evidence = Evidence(paper, sorted(records, key=lambda r: r.file_name))
    shown = {what: write(evidence) for what, write in _FIGURES.items()}
    sections = (
        _accuracy(evidence),
        _studies(evidence),
        _profiles(evidence),
        *shown.values(),
        _shortened(evidence),
        _missing(evidence, [what for what, section in shown.items() if section is None]),
        _provenance(evidence),
        _runs(evidence),
    )
    told = tuple(section for section in sections if section is not None)
    return Account(paper.title, paper.citation, _verdict(evidence), told)


def _verdict(e: Evidence) -> str:
    measured = [cell for cell in e.paper.cells if _is_measured(e, cell)]
    if not measured:
        return "Nothing of the paper's tables has been measured at full length yet."
    return (
        f"Measured at full length: {', '.join(cell.title for cell in measured)}. Of the accuracies after "
        f"conversion, {tables.score(e.paper, e.full)}."
    )


def _is_measured(e: Evidence, cell: Cell) -> bool:
    return any(not g.first.label for g in tables.own_groups(e.paper, cell, e.full))


def _accuracy(e: Evidence) -> Section | None:
    found = [(cell, own) for cell in e.paper.cells if (own := tables.own_groups(e.paper, cell, e.full))]
    if not found:
        return None
    panels = [_against_printed(cell, own) for cell, own in found]
    blocks = [tables.cell_table(e.paper, cell, own) for cell, own in found]
    texts = ["Percent right of the test images. Differences are in points, measured minus printed."]
    texts += tables.tell_other_scores(e.paper, e.full)
    return Section("Accuracy beside the printed tables", tuple(texts), tuple(panels), tuple(blocks))


def _against_printed(cell: Cell, own: Sequence[Group]) -> Panel:
    printed = {float(t): a for t, a in cell.own.accuracy.items() if a is not None}
    curves = []
    for i, g in enumerate(own):
        curve = {float(t): a for t, a in g.curve.items()}
        curves.append(Curve(tables.name_line(g), curve, i + (i > 0), key=g.first.label or "measured"))
    curves.append(Curve("printed", printed, 1, marked=True))
    return draw_curves(f"table-{cell.name}", cell.title, curves, ann=own[0].ann)


def _studies(e: Evidence) -> Section | None:
    found = [table for cell in e.paper.cells if (table := study_table(cell, e.studies(cell)))]
    if not found:
        return None
    text = (
        "Settings other than the paper's were tried on networks trained without some of the training images, "
        "and measured on these; no test image was looked at. The best was then trained on all of them."
    )
    return Section("Settings chosen on held-out images", (text,), tables=tuple(found))


def _profiles(e: Evidence) -> Section | None:
    found = []
    for cell in e.paper.cells:
        views = e.views(cell)
        for label in dict.fromkeys(view.label for view in views):
            table = profiles_table([view for view in views if view.label == label])
            found += [table] if table else []
    if not found:
        return None
    text = "The same networks in other arithmetic: half precision (fast) and whole numbers (int8)."
    return Section("Profiles", (text,), tables=tuple(found))


def _energy(e: Evidence) -> Section | None:
    found = {}
    for view in (view for cell in e.paper.cells for view in e.views(cell)):
        measured = side_by_side(r for r in view.records if "flop" in r.extra)
        if measured and view.name not in found:
            found[view.name] = (view, measured[0].first)
    table = tables.energy_table(e.paper, list(found.values()))
    return None if table is None else Section("Energy", tables=(table,))


def _shortened(e: Evidence) -> Section | None:
    found = [(cell, own) for cell in e.paper.cells if (own := tables.own_groups(e.paper, cell, e.shortened))]
    if not found:
        return None
    text = "These were cut against the paper's own runs, as said below each, and count nowhere above."
    blocks = tuple(tables.cell_table(e.paper, cell, own) for cell, own in found)
    return Section("Shortened runs", (text,), tables=blocks)


def _missing(e: Evidence, figures: Sequence[str]) -> Section | None:
    missing = [cell.title for cell in e.paper.cells if not _is_measured(e, cell)]
    missing += [f"{what}: on no network" for what in figures]
    return Section("Not measured at full length", points=tuple(missing)) if missing else None


def _provenance(e: Evidence) -> Section | None:
    return Section("On the printed numbers", points=e.paper.warnings) if e.paper.warnings else None


def _runs(e: Evidence) -> Section:
    return Section("Where the numbers come from", tables=(tables.runs_table(e.records),), words=True)


_FIGURES: dict[str, Callable[[Evidence], Section | None]] = {
    "Ways to start (figure 2)": tell_starts,
    "Constant starts (figure 3 and the heat map)": tell_constants,
    "Propagation delay (figure 1)": tell_delays,
    "Other methods (the rest of the tables)": tell_methods,
    "The start with other methods (figure 4)": tell_gains,
    "Energy": _energy,
}
