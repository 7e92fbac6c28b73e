"""What a report says about one paper, section by section."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.papers.report import tables
from rheobase.papers.report.evidence import Evidence, View
from rheobase.papers.report.groups import Group, side_by_side
from rheobase.papers.report.methods import gains_section, methods_section, missing_rows
from rheobase.reports import Axis, Curve, Panel, Section, draw_curves, draw_heat_map

_HEAT_MAP_STEPS = 75
_SHARES = tuple(i / 10 for i in range(11))


@dataclass(frozen=True)
class Account:
    """What a report says about one paper."""

    title: str
    citation: str
    verdict: str
    facts: Mapping[str, str]
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
        Section("On the printed numbers", points=paper.warnings) if paper.warnings else None,
        Section("Where the numbers come from", tables=(tables.runs_table(evidence.records),), words=True),
    )
    first, *later = (section for section in sections if section is not None)
    # A list is short; what has figures or tables is long.
    found = (first, *(replace(section, folded=not section.points) for section in later))
    return Account(paper.title, paper.citation, _verdict(evidence), _facts(evidence), found)


def _verdict(e: Evidence) -> str:
    measured = [cell for cell in e.paper.cells if _is_measured(e, cell)]
    if not measured:
        return "No cell of the paper's tables has been measured at full length yet."
    return f"Measured at full length: {', '.join(cell.title for cell in measured)}."


def _facts(e: Evidence) -> dict[str, str]:
    measured = sum(_is_measured(e, cell) for cell in e.paper.cells)
    return {"networks measured": f"{measured} of {len(e.paper.cells)}", "records": f"{len(e.records):,}"}


def _is_measured(e: Evidence, cell: Cell) -> bool:
    return tables.headline(e.paper, cell, e.records) is not None


def _accuracy(e: Evidence) -> Section | None:
    found = [(cell, own) for cell in e.paper.cells if (own := tables.own_groups(e.paper, cell, e.full))]
    if not found:
        return None
    panels = [*_draw_differences(e), *(_draw_accuracy(cell, own) for cell, own in found)]
    blocks = [tables.cell_table(e.paper, cell, own) for cell, own in found]
    text = "Accuracy in percent of the test images. Differences in points, measured minus printed."
    texts = (f"{text} {tables.NOISE}",)
    return Section("Accuracy compared with the paper", texts, tuple(panels), tuple(blocks))


def _draw_differences(e: Evidence) -> list[Panel]:
    """How far each network trained as in the paper is from the printed accuracies."""
    curves: list[Curve] = []
    for cell in e.paper.cells:
        if (g := tables.headline(e.paper, cell, e.records)) is not None:
            printed = {t: a for t, a in cell.own.accuracy.items() if a is not None}
            points = {float(t): g.curve[t] - a for t, a in printed.items() if t in g.curve}
            curves += [Curve(cell.title, points, len(curves))] if points else []
    title, axis = "Measured minus printed accuracy", Axis(y="points")
    return [draw_curves("differences", title, curves, axis=axis)] if len(curves) > 1 else []


def _draw_accuracy(cell: Cell, own: Sequence[Group]) -> Panel:
    printed = {float(t): a for t, a in cell.own.accuracy.items() if a is not None}
    curves = []
    for i, g in enumerate(own):
        curve = {float(t): a for t, a in g.curve.items()}
        curves.append(Curve(tables.name_line(g), curve, i + (i > 0), key=g.first.label or "measured"))
    curves.append(Curve("printed", printed, 1, marked=True))
    return draw_curves(f"table-{cell.name}", cell.title, curves, ann=own[0].ann)


def _studies(e: Evidence) -> Section | None:
    cells: dict[str, list[Cell]] = {}
    for cell in e.paper.cells:
        cells.setdefault(cell.dataset, []).append(cell)
    readings = (tables.readings_table(f"Readings on {name}", of, e.records) for name, of in cells.items())
    studies = (tables.study_table(cell, e.studies(cell)) for cell in e.paper.cells)
    found = [table for table in (*readings, *studies) if table]
    if not found:
        return None
    texts = (
        "Settings that the paper leaves open, and some others, were tried on held-out training images, never "
        "on test images. The best reading keeps what the paper states, and has the largest mean over the "
        "steps of its worst difference to the paper on any network, in points. Only trainings at full length "
        "are compared.",
    )
    return Section("Settings tried on held-out images", texts, tables=tuple(found))


def _profiles(e: Evidence) -> Section | None:
    found = []
    for cell in e.paper.cells:
        views = e.views(cell)
        for label in dict.fromkeys(view.label for view in views):
            table = tables.profiles_table([view for view in views if view.label == label])
            found += [table] if table else []
    if not found:
        return None
    text = "The same networks in other arithmetic: half precision (fast) and integers (int8)."
    return Section("Profiles", (text,), tables=tuple(found))


def _shortened(e: Evidence) -> Section | None:
    found = [(cell, own) for cell in e.paper.cells if (own := tables.own_groups(e.paper, cell, e.shortened))]
    if not found:
        return None
    text = "Runs that were shortened compared with the paper's. They are not counted above."
    blocks = tuple(tables.cell_table(e.paper, cell, own) for cell, own in found)
    return Section("Shortened runs", (text,), tables=blocks)


def _missing(e: Evidence, figures: Sequence[str]) -> Section | None:
    missing = []
    for cell in e.paper.cells:
        missing += missing_rows(e, cell) if _is_measured(e, cell) else [cell.title]
    missing += [f"{what}: on no network" for what in figures]
    return Section("Not measured at full length", points=tuple(missing)) if missing else None


def _energy(e: Evidence) -> Section | None:
    found = {}
    for view in (view for cell in e.paper.cells for view in e.views(cell)):
        measured = side_by_side(r for r in view.records if "flop" in r.extra)
        if measured and view.name not in found:
            found[view.name] = (view, measured[0].first)
    table = tables.energy_table(e.paper, list(found.values()))
    return None if table is None else Section("Energy", tables=(table,))


def _starts(e: Evidence) -> Section | None:
    """Zero, half, uniform and Gaussian starts over time."""
    panels = e.draw(lambda view: _draw_starts(view, e.paper.method))
    if not panels:
        return None
    text = "The same trained network with different initial potentials (the paper's figure 2)."
    return Section("Initial potential", (text,), tuple(panels))


def _draw_starts(view: View, method: str) -> list[Panel]:
    found = side_by_side(
        r for r in view.records if r.method == method and r.accuracy and _share(r.initial) in (0.0, 0.5, None)
    )
    if len(found) < 2:
        return []
    order = sorted(found, key=lambda g: (g.first.initial not in ("half", "zero"), g.first.initial))
    longest = min(max(g.curve) for g in order)
    curves = [Curve(g.first.initial, _cut(g, longest), i) for i, g in enumerate(order)]
    title = f"{view.title}, {order[0].seeds}"
    return [draw_curves(f"starts-{view.name}", title, curves[::-1], ann=order[0].ann)]


def _constants(e: Evidence) -> Section | None:
    """Starts at constant shares of the threshold, over time and as a heat map."""
    lacking: dict[str, list[str]] = {}

    def draw(view: View) -> list[Panel]:
        groups = side_by_side(
            r
            for r in view.records
            if r.method == e.paper.method and r.accuracy and _share(r.initial) is not None
        )
        found = {share: g for g in groups if (share := _share(g.first.initial)) is not None}
        panels = _draw_constants(view, found)
        if panels and (rest := [f"{share:g}" for share in _SHARES if share not in found]):
            lacking[view.title] = rest
        return panels

    panels = e.draw(draw)
    if not panels:
        return None
    texts = ["Initial potential at a constant share of the threshold (figure 3 and the appendix's heat map)."]
    if e.paper.best_start:
        low, high = e.paper.best_start
        texts.append(f"The paper finds the best start always between {low:g} and {high:g}.")
    points = tuple(f"Not measured yet on {title}: {', '.join(rest)}." for title, rest in lacking.items())
    return Section("Constant starts", tuple(texts), tuple(panels), points=points)


def _draw_constants(view: View, found: Mapping[float, Group]) -> list[Panel]:
    if len(found) < 4:
        return []
    longest = min(max(g.curve) for g in found.values())
    marked = {0.0: 1, 0.5: 0, 1.0: 2}
    behind = sorted(set(found) - set(marked))
    curves = [
        Curve(
            f"{f:g}",
            _cut(found[f], longest),
            marked.get(f),
            key=None if f in marked else f"{behind[0]:g} … {behind[-1]:g}" if f == behind[0] else "",
        )
        for f in sorted(found, key=lambda f: (f in marked, f == 0.5, f))
    ]
    first = found[min(found)]
    title = f"{view.title}, {first.seeds}"
    panels = [draw_curves(f"constants-{view.name}", title, curves, ann=first.ann)]
    inner = {f: g.curve for f, g in found.items() if 0 < f < 1}
    if inner and min(inner) < 0.5 < max(inner):  # with one side only the other cannot be the best
        steps = min(_HEAT_MAP_STEPS, longest)
        panels.append(draw_heat_map(f"map-{view.name}", f"{title}: every step", inner, steps))
    return panels


def _delays(e: Evidence) -> Section | None:
    """When each layer fires first."""
    panels = e.draw(_draw_delays)
    if not panels:
        return None
    text = "The step at which each layer's first neuron fires, mean over test images (the paper's figure 1)."
    return Section("Propagation delay", (text,), tuple(panels))


def _draw_delays(view: View) -> list[Panel]:
    found = side_by_side(r for r in view.records if "first_spike" in r.extra)
    if not found:
        return []
    colours = {"half": 0, "zero": 1}
    first, fired = [], []
    for r in sorted((g.first for g in found), key=lambda r: r.initial):
        colour = colours.get(r.initial, 2)
        first.append(Curve(r.initial, {float(i): t for i, t in enumerate(r.extra["first_spike"], 1)}, colour))
        last = {float(t): 100 * share for t, share in enumerate(r.extra["fired"][-1], 1)}
        fired.append(Curve(r.initial, last, colour))
    title = f"{view.title}, seed {found[0].first.seed}"
    axis = Axis("layer", "time step of the first spike", scale="even", from_zero=True)
    share = Axis(y="neurons that have fired, %")
    return [
        draw_curves(f"delay-{view.name}", f"{title}: first spike", first, axis=axis),
        draw_curves(f"fired-{view.name}", f"{title}: last spiking layer", fired, axis=share),
    ]


def _cut(g: Group, longest: int) -> dict[float, float]:
    return {float(t): a for t, a in g.curve.items() if t <= longest}


def _share(initial: str) -> float | None:
    """The share of the threshold at which membranes started, if it was a constant."""
    named = {"zero": 0.0, "half": 0.5}
    if initial in named:
        return named[initial]
    try:
        return float(initial)
    except ValueError:
        return None


_FIGURES: dict[str, Callable[[Evidence], Section | None]] = {
    "Starts (figure 2)": _starts,
    "Constant starts (figure 3 and the heat map)": _constants,
    "Propagation delay (figure 1)": _delays,
    "Other methods (the rest of the tables)": methods_section,
    "The start with other methods (figure 4)": gains_section,
    "Energy": _energy,
}
