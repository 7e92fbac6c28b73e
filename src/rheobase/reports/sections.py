"""What a report says about one paper, section by section."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rheobase.papers import Cell, Paper
from rheobase.records import Record
from rheobase.reports import tables
from rheobase.reports.drawing import Panel
from rheobase.reports.figures import Axis, Curve, draw_curves, draw_gains, draw_heat_map
from rheobase.reports.groups import Group, choose, group, join
from rheobase.reports.pages import Section
from rheobase.reports.tables import Table

_HEAT_MAP_STEPS = 75
_GAINS_AT = (32, 64)
_METHODS_AT = (8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Account:
    """What a report says about one paper."""

    title: str
    citation: str
    verdict: str
    sections: tuple[Section, ...]


@dataclass(frozen=True)
class _Evidence:
    """A paper and what was measured for it: runs at full length, shortened ones, and every record."""

    paper: Paper
    full: list[Group]
    shortened: list[Group]
    records: list[Record]

    def of(self, cell: Cell) -> list[Group]:
        """Every way in which the paper's own method was measured on a cell."""
        found = choose(self.full, model=cell.model, dataset=cell.dataset, method=self.paper.method)
        return sorted(found, key=lambda g: g.first.initial)

    def extras(self, cell: Cell, key: str) -> list[Record]:
        """A cell's records with something extra, of the first seed that has it."""
        found = [
            r
            for r in self.records
            if (r.model, r.dataset) == (cell.model, cell.dataset) and key in r.extra and not r.shortened
        ]
        return sorted((r for r in found if r.seed == min(r.seed for r in found)), key=lambda r: r.initial)


def account(paper: Paper, records: Sequence[Record]) -> Account:
    """Everything a report says about a paper."""
    full = group(r for r in records if not r.shortened)
    cut = group(r for r in records if r.shortened)
    evidence = _Evidence(paper, full, cut, sorted(records, key=lambda r: r.file_name))
    writers: tuple[Callable[[_Evidence], Section | None], ...] = (
        _accuracy,
        _starts,
        _constants,
        _delays,
        _methods,
        _energy,
        _shortened,
        _missing,
        _provenance,
        _runs,
    )
    sections = tuple(section for write in writers if (section := write(evidence)))
    return Account(paper.title, paper.citation, _verdict(evidence), sections)


def _verdict(e: _Evidence) -> str:
    measured = [cell for cell in e.paper.cells if tables.own_groups(e.paper, cell, e.full)]
    if not measured:
        return "Nothing of the paper's tables has been measured at full length yet."
    return (
        f"Measured at full length: {', '.join(cell.title for cell in measured)}. Of the accuracies after "
        f"conversion, {tables.score(e.paper, e.full)}."
    )


def _accuracy(e: _Evidence) -> Section | None:
    found = [(cell, own) for cell in e.paper.cells if (own := tables.own_groups(e.paper, cell, e.full))]
    if not found:
        return None
    panels = [_against_printed(cell, own) for cell, own in found]
    blocks = [tables.cell_table(e.paper, cell, own) for cell, own in found]
    text = "Percent right of the test images. Differences are in points, measured minus printed."
    return Section("Accuracy beside the printed tables", (text,), tuple(panels), tuple(blocks))


def _against_printed(cell: Cell, own: Sequence[Group]) -> Panel:
    printed = {float(t): a for t, a in cell.own.accuracy.items() if a is not None}
    names = ["measured", *(f"measured, line {i}" for i in range(2, len(own) + 1))]
    curves = [
        Curve(name, _floats(g.curve), i + (i > 0)) for i, (name, g) in enumerate(zip(names, own, strict=True))
    ]
    curves.append(Curve("printed", printed, 1, marked=True))
    return draw_curves(f"table-{cell.name}", cell.title, curves, ann=own[0].ann)


def _starts(e: _Evidence) -> Section | None:
    panels = []
    for cell in e.paper.cells:
        found = [g for g in e.of(cell) if _fraction(g) in (0.0, 0.5, None)]
        if len(found) < 2:
            continue
        order = sorted(found, key=lambda g: (g.first.initial not in ("half", "zero"), g.first.initial))
        longest = min(max(g.curve) for g in order)
        curves = [
            Curve(g.first.initial, {float(t): a for t, a in g.curve.items() if t <= longest}, i)
            for i, g in enumerate(order)
        ]
        panels.append(draw_curves(f"starts-{cell.name}", cell.title, curves[::-1], ann=order[0].ann))
    if not panels:
        return None
    text = "One trained network, its membranes started in different ways (the paper's figure 2)."
    return Section("How the membrane starts", (text,), tuple(panels))


def _constants(e: _Evidence) -> Section | None:
    curves_of: list[Panel] = []
    maps: list[Panel] = []
    for cell in e.paper.cells:
        found = {f: g for g in e.of(cell) if (f := _fraction(g)) is not None}
        if len(found) < 4:
            continue
        longest = min(max(g.curve) for g in found.values())
        marked = {0.0: 1, 0.5: 0, 1.0: 2}
        behind = sorted(set(found) - set(marked))
        curves = [
            Curve(
                f"{f:g}",
                {float(t): a for t, a in found[f].curve.items() if t <= longest},
                marked.get(f),
                key=None if f in marked else f"{behind[0]:g} … {behind[-1]:g}" if f == behind[0] else "",
            )
            for f in sorted(found, key=lambda f: (f in marked, f == 0.5, f))
        ]
        ann = found[min(found)].ann
        curves_of.append(draw_curves(f"constants-{cell.name}", cell.title, curves, ann=ann))
        inner = {f: g.curve for f, g in found.items() if 0 < f < 1}
        steps = min(_HEAT_MAP_STEPS, longest)
        maps.append(draw_heat_map(f"map-{cell.name}", f"{cell.title}: every step", inner, steps))
    if not curves_of:
        return None
    texts = ["Membranes started at a constant share of the threshold (figure 3 and the appendix's heat map)."]
    if e.paper.best_start:
        low, high = e.paper.best_start
        texts.append(f"The paper finds the best start always between {low:g} and {high:g}.")
    pairs = (panel for pair in zip(curves_of, maps, strict=True) for panel in pair)
    return Section("Constant starts", tuple(texts), tuple(pairs))


def _delays(e: _Evidence) -> Section | None:
    panels = []
    for cell in e.paper.cells:
        found = e.extras(cell, "first_spike")
        if not found:
            continue
        colours = {"half": 0, "zero": 1}
        first, fired = [], []
        for r in found:
            colour = colours.get(r.initial, 2)
            first.append(
                Curve(r.initial, {float(i): t for i, t in enumerate(r.extra["first_spike"], 1)}, colour)
            )
            last = {float(t): 100 * share for t, share in enumerate(r.extra["fired"][-1], 1)}
            fired.append(Curve(r.initial, last, colour))
        axis = Axis("layer", "time step of the first spike", scale="even")
        panels.append(draw_curves(f"delay-{cell.name}", f"{cell.title}: first spike", first, axis=axis))
        axis = Axis(y="neurons that have fired, %")
        panels.append(
            draw_curves(f"fired-{cell.name}", f"{cell.title}: last spiking layer", fired, axis=axis)
        )
    if not panels:
        return None
    text = "When each layer's first neuron fires, the mean over test images (the paper's figure 1)."
    return Section("Propagation delay", (text,), tuple(panels))


def _methods(e: _Evidence) -> Section | None:
    panels: list[Panel] = []
    blocks: list[Table] = []
    for cell in e.paper.cells:
        found = choose(e.full, model=cell.model, dataset=cell.dataset)
        kept = [g for g in found if g.first.initial in ("zero", "half") or g.first.method != e.paper.method]
        if len({g.first.method for g in kept}) < 2:
            continue
        blocks.append(tables.methods_table(cell.title, kept, _METHODS_AT))
        curves = join(kept)
        for steps in _GAINS_AT:
            rows = [
                (method, zero, half)
                for method in sorted({g.first.method for g in kept})
                if (zero := curves.get((method, "zero"), {}).get(steps)) is not None
                and (half := curves.get((method, "half"), {}).get(steps)) is not None
            ]
            if rows:
                title = f"{cell.title}, {steps} steps"
                panels.append(draw_gains(f"gains-{cell.name}-{steps}", title, rows, ann=kept[0].ann))
    if not blocks:
        return None
    claims = tables.claims_table(e.paper, e.full)
    texts = ("Each method on the same trained network with constant input, from both starts.",)
    return Section(
        "Every method, both starts", texts, tuple(panels), (*blocks, *([claims] if claims else []))
    )


def _energy(e: _Evidence) -> Section | None:
    found = [r for cell in e.paper.cells for r in e.extras(cell, "flop")]
    table = tables.energy_table(e.paper, found)
    return None if table is None else Section("Energy", tables=(table,))


def _shortened(e: _Evidence) -> Section | None:
    found = [(cell, own) for cell in e.paper.cells if (own := tables.own_groups(e.paper, cell, e.shortened))]
    if not found:
        return None
    text = "These were cut against the paper's own runs, as said below each, and count nowhere above."
    blocks = tuple(tables.cell_table(e.paper, cell, own) for cell, own in found)
    return Section("Shortened runs", (text,), tables=blocks)


def _missing(e: _Evidence) -> Section | None:
    missing = [cell for cell in e.paper.cells if not tables.own_groups(e.paper, cell, e.full)]
    if not missing:
        return None
    return Section("Not measured at full length", points=tuple(cell.title for cell in missing))


def _provenance(e: _Evidence) -> Section | None:
    return Section("On the printed numbers", points=e.paper.warnings) if e.paper.warnings else None


def _runs(e: _Evidence) -> Section | None:
    return Section("Where the numbers come from", tables=(tables.runs_table(e.records),), words=True)


def _fraction(g: Group) -> float | None:
    """The constant share of the threshold at which membranes started, if it was one."""
    named = {"zero": 0.0, "half": 0.5}
    if g.first.initial in named:
        return named[g.first.initial]
    try:
        return float(g.first.initial)
    except ValueError:
        return None


def _floats(curve: dict[int, float]) -> dict[float, float]:
    return {float(t): a for t, a in curve.items()}
