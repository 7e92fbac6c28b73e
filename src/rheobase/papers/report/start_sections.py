"""What a report shows of how membranes start: over time, constant shares of the threshold, and delays."""

from collections.abc import Mapping

from rheobase.papers.report.evidence import Evidence, View
from rheobase.papers.report.groups import Group, side_by_side
from rheobase.reports import Axis, Curve, Panel, Section, draw_curves, draw_heat_map

_HEAT_MAP_STEPS = 75
_SHARES = tuple(i / 10 for i in range(11))


def tell_starts(e: Evidence) -> Section | None:
    """Zero, half, uniform and Gaussian starts over time."""
    panels = e.draw(lambda view: _draw_starts(view, e.paper.method))
    if not panels:
        return None
    text = "The same trained network, its membranes started in different ways (the paper's figure 2)."
    return Section("How the membrane starts", (text,), tuple(panels))


def tell_constants(e: Evidence) -> Section | None:
    """Starts at constant shares of the threshold, over time and as a heat map."""
    lacking: dict[str, list[str]] = {}

    def draw(view: View) -> list[Panel]:
        found = _constants(view, e.paper.method)
        panels = _draw_constants(view, found)
        if panels and (rest := [f"{share:g}" for share in _SHARES if share not in found]):
            lacking[view.title] = rest
        return panels

    panels = e.draw(draw)
    if not panels:
        return None
    texts = ["Membranes started at a constant share of the threshold (figure 3 and the appendix's heat map)."]
    if e.paper.best_start:
        low, high = e.paper.best_start
        texts.append(f"The paper finds the best start always between {low:g} and {high:g}.")
    points = tuple(f"Not measured yet on {title}: {', '.join(rest)}." for title, rest in lacking.items())
    return Section("Constant starts", tuple(texts), tuple(panels), points=points)


def tell_delays(e: Evidence) -> Section | None:
    """When each layer fires first."""
    panels = e.draw(_draw_delays)
    if not panels:
        return None
    text = "When each layer's first neuron fires, the mean over test images (the paper's figure 1)."
    return Section("Propagation delay", (text,), tuple(panels))


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


def _constants(view: View, method: str) -> dict[float, Group]:
    """What was measured from constant starts, by their shares of the threshold."""
    groups = side_by_side(
        r for r in view.records if r.method == method and r.accuracy and _share(r.initial) is not None
    )
    return {share: g for g in groups if (share := _share(g.first.initial)) is not None}


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
    """The constant share of the threshold at which membranes started, if it was one."""
    named = {"zero": 0.0, "half": 0.5}
    if initial in named:
        return named[initial]
    try:
        return float(initial)
    except ValueError:
        return None
