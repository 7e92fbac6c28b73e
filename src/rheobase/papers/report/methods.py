"""The sections on other methods: each on the same networks, from both starts, and published values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rheobase import methods
from rheobase.io import restore
from rheobase.papers.paper import Cell, Claim, Original, Paper, Row
from rheobase.papers.records import Plain
from rheobase.papers.report.evidence import Evidence, View, name_profile
from rheobase.papers.report.groups import Group, side_by_side
from rheobase.papers.report.tables import columns_of, printed_values, spread
from rheobase.reports import DASH, Curve, Line, Panel, Section, Table, draw_curves, draw_gains, number

_GAINS_AT = (32, 64)


@dataclass(frozen=True)
class MethodCurve:
    """A method with one start on one network. A method converted for each number of steps has many groups.

    Attributes:
        method: Its name.
        initial: The start.
        settings: The method's settings as text: all of them if they vary between curves of this method, else
            those that are not its defaults.
        groups: The measured results.
    """

    method: str
    initial: str
    settings: str
    groups: tuple[Group, ...]

    def at(self, steps: int) -> float | None:
        """Accuracy after the given number of steps, if known."""
        return next((g.curve[steps] for g in self.groups if steps in g.curve), None)

    def deviation_at(self, steps: int) -> float | None:
        """Its standard deviation over seeds."""
        return next((g.deviations[steps] for g in self.groups if steps in g.deviations), None)

    @property
    def steps(self) -> list[int]:
        """The steps with an answer."""
        return sorted({t for g in self.groups for t in g.curve})


def methods_section(e: Evidence) -> Section | None:
    """Every method from both starts, with what is printed about it."""
    panels: list[Panel] = []
    blocks = []
    for cell in e.paper.cells:
        views = _views_of_methods(e, e.views(cell))
        if len({r.method for view in views for r in view.records if r.accuracy}) < 2:
            continue
        blocks.append(methods_table(e.paper, cell, views))
        for view in views:
            panels += _draw_gains(e, view)
    if not blocks:
        return None
    text = (
        "Each method with constant input, from both starts: first on the network trained for the paper's own "
        "method, then on a network trained for it. Published values, on other networks, are below."
    )
    return Section("Every method, both starts", (text,), tuple(panels), tuple(blocks))


def missing_rows(e: Evidence, cell: Cell) -> list[str]:
    """The columns of other methods' rows without a measurement at full length.

    Where a method's paper trains the SNN, only a network trained in that way counts.
    """
    measured = [r for view in e.views(cell) for r in view.records]
    columns, found = dict(zip(e.paper.steps, e.paper.columns, strict=True)), []
    for row in (row for row in cell.rows if row is not cell.own):
        tuning = methods.find(row.method).tuning
        words = "then tuned" if tuning is not None and tuning.of == "snn" else ""
        known = {t for r in measured if r.method == row.method and words in r.label for t in r.accuracy}
        lacking = [columns[t] for t, a in row.accuracy.items() if a is not None and t not in known]
        found += [f"{cell.title}, {row.label}: {', '.join(lacking)}"] if lacking else []
    return found


def gains_section(e: Evidence) -> Section | None:
    """What the paper's start adds to the methods that the paper names."""
    panels = []
    for method in dict.fromkeys(claim.method for claim in e.paper.claims):
        claims = [claim for claim in e.paper.claims if claim.method == method]
        panels += e.draw(partial(_draw_method, claims))
    views = [view for cell in e.paper.cells for view in _views_of_methods(e, e.views(cell))]
    claimed = claims_table(e.paper, views)
    if not panels and claimed is None:
        return None
    text = "Other methods with and without the start at half the threshold (the paper's figure 4)."
    blocks = () if claimed is None else (claimed,)
    return Section("The start with other methods", (text,), tuple(panels), blocks)


def curves_of(paper: Paper, view: View) -> list[MethodCurve]:
    """Every method on one network, from zero and half the threshold; others from their own start too."""
    own, usual = paper.method, ("zero", "half")
    wanted = [r for r in view.records if r.accuracy and (r.initial in usual or r.method != own)]
    found: dict[tuple[str, str, str], list[Group]] = {}
    for g in side_by_side(wanted):
        found.setdefault((g.first.method, g.first.initial, _to_text(_settings(g))), []).append(g)
    order = sorted(found, key=lambda key: (key[0], key[2], key[1] != "zero", key[1]))
    variants = {method: {text for name, _, text in found if name == method} for method, _, _ in found}
    curves = []
    for method, initial, text in order:
        shown = text if len(variants[method]) > 1 else _unusual(found[method, initial, text][0])
        curves.append(MethodCurve(method, initial, shown, tuple(found[method, initial, text])))
    return curves


def _settings(g: Group) -> dict[str, object]:
    return dict(g.first.settings.get("method", {}))


def _unusual(g: Group) -> str:
    """The settings that are not the method's defaults today."""
    if g.first.method not in methods.names():
        return ""
    usual = restore(Plain, methods.settings_of(methods.find(g.first.method).example()), "settings")
    return _to_text({name: value for name, value in _settings(g).items() if usual.get(name, value) != value})


def _to_text(settings: Mapping[str, object]) -> str:
    """Settings as text, without the number of steps, which the columns show."""
    return ", ".join(f"{name} {value}" for name, value in sorted(settings.items()) if name != "steps")


def methods_table(paper: Paper, cell: Cell, views: Sequence[View]) -> Table:
    """Every method from its starts on a cell's networks, and what is published about each."""
    originals = [original for original in paper.originals if original.cell == cell.name]
    heads = columns_of(paper)
    columns = sorted({*heads, *(t for original in originals for t in original.accuracy)})
    lines: dict[str, list[Line]] = {}
    notes = {}
    for view in views:
        for curve in curves_of(paper, view):
            lines.setdefault(curve.method, []).append(_measured_line(curve, view, columns))
            if len(curve.steps) == 1 and not any("steps" in _settings(g) for g in curve.groups):
                notes[curve.method] = (
                    f"{curve.method} answers once, after {curve.steps[0]} steps: its accuracy is in that "
                    "column, or in the next one together with the number of steps."
                )
    for row in cell.rows:
        name = row.method if row is cell.own else row.label
        lines.setdefault(row.method, []).append(_printed_line(name, row, columns))
    for original in originals:
        lines.setdefault(original.method, []).append(_reported_line(original, columns))
    header = ("Method", "Start", "Network", "ANN", *(heads.get(t, f"T={t}") for t in columns))
    ordered = tuple(line for method in sorted(lines) for line in lines[method])
    seeds = sorted({_describe_seeds(view, curves_of(paper, view)) for view in views})
    note = "Printed and reported rows are from other networks than the measured ones."
    return Table(cell.title, header, ordered, (*seeds, *notes.values(), note))


def _describe_seeds(view: View, curves: Sequence[MethodCurve]) -> str:
    trained = view.label or "trained as in the paper"
    manner = view.manner or f"profile {view.profile}"
    return f"Measured rows of the network {trained}: {curves[0].groups[0].seeds}, {manner}."


def _measured_line(curve: MethodCurve, view: View, columns: Sequence[int]) -> Line:
    first = curve.groups[0]
    texts = {t: spread(curve.at(t), curve.deviation_at(t)) for t in columns}
    if len(curve.steps) == 1 and (only := curve.steps[0]) not in columns:
        place = next((t for t in columns if t > only), columns[-1])
        texts[place] = f"{spread(curve.at(only), curve.deviation_at(only))} (T={only})"
    name = f"{curve.method} {curve.settings}".strip()
    words = (view.label or "the paper's own", name_profile(view.profile))
    trained = ", ".join(word for word in words if word)
    values = (curve.initial, trained, spread(first.ann, first.ann_deviation), *texts.values())
    return Line(name, values, "measured")


def _printed_line(name: str, row: Row, columns: Sequence[int]) -> Line:
    values = (DASH, "printed", *printed_values(row, columns))
    return Line(f"{name}, printed", values, "printed", row.note)


def _reported_line(original: Original, columns: Sequence[int]) -> Line:
    values = (number(original.accuracy.get(t)) for t in columns)
    note = " ".join(text for text in (original.network, original.source) if text)
    name = f"{original.label}, reported"
    return Line(name, (DASH, "reported", number(original.ann), *values), "printed", note)


def claims_table(paper: Paper, views: Sequence[View]) -> Table | None:
    """What the paper says its start adds to other methods, compared with the measurements."""
    lines = []
    for claim in paper.claims:
        printed = f"{claim.zero:g} → {claim.half:g} ({claim.half - claim.zero:+g})"
        gains = [f"{v.title}: {gain}" for v in views if (gain := _gain(paper, v, claim.method, claim.steps))]
        values = (paper.cell(claim.cell).title, f"T={claim.steps}", printed, "; ".join(gains) or DASH)
        lines.append(Line(claim.label, values))
    if not any(line.values[-1] != DASH for line in lines):
        return None
    note = (
        "The paper trained a network for each of these methods; the measured values are from the network "
        "trained for its own method, unless stated otherwise."
    )
    header = ("Method", "Printed for", "Steps", "Printed, zero → half", "Measured, zero → half")
    return Table("The start at half the threshold with other methods", header, tuple(lines), (note,))


def gains_of(curves: Sequence[MethodCurve], steps: int) -> list[tuple[str, float, float]]:
    """For each method that was run from both starts: its name, and its accuracy from zero and from half."""
    found: dict[str, dict[str, float]] = {}
    for curve in curves:
        if (value := curve.at(steps)) is not None:
            name = f"{curve.method} {curve.settings}".strip()
            found.setdefault(name, {})[curve.initial] = value
    both = {name: starts for name, starts in found.items() if {"zero", "half"} <= starts.keys()}
    return [(name, both[name]["zero"], both[name]["half"]) for name in sorted(both)]


def _gain(paper: Paper, view: View, method: str, steps: int) -> str:
    gains = gains_of([curve for curve in curves_of(paper, view) if curve.method == method], steps)
    return "; ".join(
        f"{zero:.2f} → {half:.2f} ({half - zero:+.2f})".replace("-", "−") for _, zero, half in gains
    )


def _views_of_methods(e: Evidence, views: Sequence[View]) -> list[View]:
    """For each training every method once, in the simulation with most starts, exact first.

    Other trainings of the paper's own method alone are left out.
    """
    found = []
    for name in dict.fromkeys(view.name for view in views):
        alike = [view for view in views if view.name == name]
        starts = [Counter(curve.method for curve in curves_of(e.paper, view)) for view in alike]
        measured = {method for counts in starts for method in counts}
        if alike[0].label and measured == {e.paper.method}:
            continue
        best = {method: max(range(len(alike)), key=lambda i: starts[i][method]) for method in measured}
        for i, view in enumerate(alike):
            kept = tuple(r for r in view.records if r.accuracy and best.get(r.method) == i)
            found += [replace(view, records=kept)] if kept else []
    return found


def _draw_gains(e: Evidence, view: View) -> list[Panel]:
    curves, panels = curves_of(e.paper, view), []
    for steps in _GAINS_AT:
        rows = gains_of(curves, steps)
        # A method alone on its network is in the next section.
        if rows and (not view.label or len(rows) > 1):
            title = f"{view.title}, {curves[0].groups[0].seeds}, {steps} steps"
            name = f"gains-{view.name}-{view.profile}-{steps}"
            panels.append(draw_gains(name, title, rows, ann=curves[0].groups[0].ann))
    return panels


def _draw_method(claims: Sequence[Claim], view: View) -> list[Panel]:
    claim = claims[0]
    found = {
        g.first.initial: g
        for g in side_by_side(
            r
            for r in view.records
            if r.method == claim.method and r.initial in ("zero", "half") and len(r.accuracy) > 1
        )
    }
    if len(found) < 2:
        return []
    printed = [c for c in claims if c.cell == view.cell.name]
    curves = []
    for colour, start in ((1, "zero"), (0, "half")):
        if printed:
            points = {float(c.steps): c.zero if start == "zero" else c.half for c in printed}
            curves.append(Curve(f"{start}, printed", points, colour, marked=True))
        curves.append(Curve(start, {float(t): a for t, a in found[start].curve.items()}, colour))
    title = f"{claim.label}: {view.title}, {found['half'].seeds}"
    return [draw_curves(f"start-of-{claim.method}-{view.name}", title, curves, ann=found["half"].ann)]
