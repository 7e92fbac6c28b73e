"""What a report shows of other methods: each on the same networks, with and without the paper's start."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rheobase.papers.paper import Claim
from rheobase.papers.report.evidence import Evidence, View
from rheobase.papers.report.groups import side_by_side
from rheobase.papers.report.method_tables import claims_table, curves_of, gains_of, methods_table
from rheobase.reports import Curve, Panel, Section, draw_curves, draw_gains

_GAINS_AT = (32, 64)


def tell_methods(e: Evidence) -> Section | None:
    """Every method from both starts, beside what is printed of it."""
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
        "method, then on one of its own training. Below it stands what is printed of it, on other networks."
    )
    return Section("Every method, both starts", (text,), tuple(panels), tuple(blocks))


def tell_gains(e: Evidence) -> Section | None:
    """What the paper's start adds to the methods it is said to help, over time."""
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


def _views_of_methods(e: Evidence, views: Sequence[View]) -> list[View]:
    """Of each way to train every method once, as it was simulated from most starts, the exact way first.

    Other trainings for the paper's own method alone are left out.
    """
    found = []
    for name in dict.fromkeys(view.name for view in views):
        alike = [view for view in views if view.name == name]
        starts = [Counter(curve.method for curve in curves_of(e.paper, view)) for view in alike]
        methods = {method for counts in starts for method in counts}
        if alike[0].label and methods == {e.paper.method}:
            continue
        best = {method: max(range(len(alike)), key=lambda i: starts[i][method]) for method in methods}
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
