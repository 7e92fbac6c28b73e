"""Tables of every method on the same networks, beside what their papers report."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rheobase import methods
from rheobase.io import restore
from rheobase.papers.paper import Cell, Original, Paper, Row
from rheobase.papers.records import Plain
from rheobase.papers.report.evidence import View, tell_profile
from rheobase.papers.report.groups import Group, side_by_side
from rheobase.papers.report.tables import columns_of, printed_values, spread
from rheobase.reports import DASH, Line, Table, number


@dataclass(frozen=True)
class MethodCurve:
    """A method with one start on one network; converted anew for each number of steps it has many groups.

    Attributes:
        method: Its name.
        initial: The start.
        settings: The method's settings as text: all where others of the same method are there too, else those
            that are not its usual ones.
        groups: What was measured.
    """

    method: str
    initial: str
    settings: str
    groups: tuple[Group, ...]

    def at(self, steps: int) -> float | None:
        """Percent right after so many steps, if known."""
        return next((g.curve[steps] for g in self.groups if steps in g.curve), None)

    def deviation_at(self, steps: int) -> float | None:
        """Its standard deviation over seeds."""
        return next((g.deviations[steps] for g in self.groups if steps in g.deviations), None)

    @property
    def steps(self) -> list[int]:
        """After which steps there is an answer."""
        return sorted({t for g in self.groups for t in g.curve})


def curves_of(paper: Paper, view: View) -> list[MethodCurve]:
    """Every method on one network, from zero and half the threshold; others from their own start too."""
    own, usual = paper.method, ("zero", "half")
    wanted = [r for r in view.records if r.accuracy and (r.initial in usual or r.method != own)]
    found: dict[tuple[str, str, str], list[Group]] = {}
    for g in side_by_side(wanted):
        found.setdefault((g.first.method, g.first.initial, _tell(_settings(g))), []).append(g)
    order = sorted(found, key=lambda key: (key[0], key[2], key[1] != "zero", key[1]))
    variants = {method: {text for name, _, text in found if name == method} for method, _, _ in found}
    curves = []
    for method, initial, text in order:
        told = text if len(variants[method]) > 1 else _unusual(found[method, initial, text][0])
        curves.append(MethodCurve(method, initial, told, tuple(found[method, initial, text])))
    return curves


def _unusual(g: Group) -> str:
    """The settings that the method has other values for today."""
    if g.first.method not in methods.names():
        return ""
    usual = restore(Plain, asdict(methods.find(g.first.method).example()), "settings")
    return _tell({name: value for name, value in _settings(g).items() if usual.get(name, value) != value})


def _tell(settings: Mapping[str, object]) -> str:
    """Settings as text; those that are converted anew for each number of steps are told by the columns."""
    return ", ".join(f"{name} {value}" for name, value in sorted(settings.items()) if name != "steps")


def methods_table(paper: Paper, cell: Cell, views: Sequence[View]) -> Table:
    """Every method from its starts on a cell's networks, and what is printed of each elsewhere."""
    originals = [original for original in paper.originals if original.cell == cell.name]
    heads = columns_of(paper)
    columns = sorted({*heads, *(t for original in originals for t in original.accuracy)})
    lines: dict[str, list[Line]] = {}
    notes = {}
    for view in views:
        for curve in curves_of(paper, view):
            lines.setdefault(curve.method, []).append(_measured_line(curve, view, columns))
            if len(curve.steps) == 1 and not any("steps" in _settings(g) for g in curve.groups):
                told = f"{curve.method} answers once, after {curve.steps[0]} steps: its answer stands there"
                notes[curve.method] = f"{told}, or in the next column with the number of steps."
    for row in cell.rows:
        name = row.method if row is cell.own else row.label
        lines.setdefault(row.method, []).append(_printed_line(name, row, columns))
    for original in originals:
        lines.setdefault(original.method, []).append(_reported_line(original, columns))
    header = ("Method", "Start", "Network", "ANN", *(heads.get(t, f"T={t}") for t in columns))
    ordered = tuple(line for method in sorted(lines) for line in lines[method])
    seeds = sorted({tell_seeds(view, curves_of(paper, view)) for view in views})
    note = "Printed and reported lines are of other networks than the measured ones, as said of each."
    return Table(cell.title, header, ordered, (*seeds, *notes.values(), note))


def claims_table(paper: Paper, views: Sequence[View]) -> Table | None:
    """What the paper says its start adds to other methods, beside what was measured anywhere."""
    lines = []
    for claim in paper.claims:
        printed = f"{claim.zero:g} → {claim.half:g} ({claim.half - claim.zero:+g})"
        gains = [f"{v.title}: {gain}" for v in views if (gain := _gain(paper, v, claim.method, claim.steps))]
        values = (paper.cell(claim.cell).title, f"T={claim.steps}", printed, "; ".join(gains) or DASH)
        lines.append(Line(claim.label, values))
    if not any(line.values[-1] != DASH for line in lines):
        return None
    note = (
        "The paper trained a network for each of these methods; measured is on the one trained for its own, "
        "where nothing else is said."
    )
    header = ("Method", "Printed for", "Steps", "Printed, zero → half", "Measured, zero → half")
    return Table("The start at half the threshold with other methods", header, tuple(lines), (note,))


def gains_of(curves: Sequence[MethodCurve], steps: int) -> list[tuple[str, float, float]]:
    """For each method that was run from both starts: its name, and percent right from zero and from half."""
    found: dict[str, dict[str, float]] = {}
    for curve in curves:
        if (value := curve.at(steps)) is not None:
            name = f"{curve.method} {curve.settings}".strip()
            found.setdefault(name, {})[curve.initial] = value
    both = {name: starts for name, starts in found.items() if {"zero", "half"} <= starts.keys()}
    return [(name, both[name]["zero"], both[name]["half"]) for name in sorted(both)]


def tell_seeds(view: View, curves: Sequence[MethodCurve]) -> str:
    """On which trained network, or networks, the methods of a view were measured."""
    trained = view.label or "trained as the paper does it"
    manner = view.manner or f"profile {view.profile}"
    return f"Measured lines of the network {trained}: {curves[0].groups[0].seeds}, {manner}."


def _measured_line(curve: MethodCurve, view: View, columns: Sequence[int]) -> Line:
    first = curve.groups[0]
    texts = {t: spread(curve.at(t), curve.deviation_at(t)) for t in columns}
    if len(curve.steps) == 1 and (only := curve.steps[0]) not in columns:
        place = next((t for t in columns if t > only), columns[-1])
        texts[place] = f"{spread(curve.at(only), curve.deviation_at(only))} (T={only})"
    name = f"{curve.method} {curve.settings}".strip()
    words = (view.label or "the paper's own", tell_profile(view.profile))
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


def _settings(g: Group) -> dict[str, object]:
    return dict(g.first.settings.get("method", {}))


def _gain(paper: Paper, view: View, method: str, steps: int) -> str:
    gains = gains_of([curve for curve in curves_of(paper, view) if curve.method == method], steps)
    return "; ".join(
        f"{zero:.2f} → {half:.2f} ({half - zero:+.2f})".replace("-", "−") for _, zero, half in gains
    )
