"""Figures over time and by start: curves, gains and a heat map."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rheobase.reports.drawing import (
    INK,
    LINE,
    MUTED,
    SERIES,
    WIDTH,
    Panel,
    clear_axes,
    draw_key,
    key_room,
    new_panel,
    shorten,
    styled,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (1, 2)), (0, (9, 3)))
_LONGEST_LABEL = 26
_ANN: Any = {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (1, 2))}
_HEIGHT = 3.1  # inches, without the key
_LEFT = 0.15  # of a panel: room for ticks like 100.00 and the name of the axis
_TICKS, _FEWEST_TICKS = 8, 3
_MARKED = 75  # steps of a heat map at most


@dataclass(frozen=True)
class Curve:
    """A line or a row of points.

    Attributes:
        label: Its name.
        points: y by x.
        colour: The number of its colour, or None for one in the background.
        marked: Whether to draw points and no line.
        key: The text in the figure's key in place of its name; none if empty.
    """

    label: str
    points: Mapping[float, float]
    colour: int | None
    marked: bool = False
    key: str | None = None


@dataclass(frozen=True)
class Axis:
    """The axes of a figure.

    Attributes:
        x: Name of the horizontal one.
        y: Name of the vertical one.
        scale: Whether a step to the right doubles x, is part of ten times as much, or always adds the same.
        from_zero: Whether the vertical one begins at zero.
    """

    x: str = "time steps"
    y: str = "accuracy, %"
    scale: Literal["doubling", "tenfold", "even"] = "doubling"
    from_zero: bool = False


@styled
def draw_curves(
    name: str, title: str, curves: Sequence[Curve], *, ann: float | None = None, axis: Axis | None = None
) -> Panel:
    """Curves with a key above them.

    Args:
        name: Unique on the page.
        title: The title.
        curves: The lines, the most important last.
        ann: Accuracy of the ANN, a dotted line.
        axis: The axes; by default accuracy over time steps.
    """
    axis = axis or Axis()
    # One order in every figure: that of the colours, then what lies behind them, then the ANN.
    named = [curve for curve in curves if curve.key != ""]
    named.sort(key=lambda curve: (len(SERIES) if curve.colour is None else curve.colour, curve.marked))
    key = [(curve.key or curve.label, _look(curve)) for curve in named]
    key += [] if ann is None else [(f"ANN {ann:.2f}", _ANN)]
    room = key_room([label for label, _ in key])
    figure, axes = new_panel(_LEFT, 0.97 - _LEFT, height=_HEIGHT + room, room=room)
    right = max(x for curve in curves for x in curve.points)
    left = min(x for curve in curves for x in curve.points)
    _scale(axes, axis, left, right)
    if ann is not None:
        axes.axhline(ann, **_ANN)
    for i, curve in enumerate(curves):
        xs = sorted(curve.points)
        ys = [curve.points[x] for x in xs]
        axes.plot(xs, ys, zorder=2 + i + curve.marked, clip_on=not curve.marked, **_look(curve))
    axes.margins(y=0.06)
    if axis.from_zero:
        axes.set_ylim(bottom=0)  # after the curves: a fixed limit ends the fitting of the other one
    _name_axes(axes, axis)
    draw_key(figure, key)
    return Panel(title, to_svg(figure, name), _tell_curves(title, curves, ann, axis))


@styled
def draw_gains(
    name: str, title: str, rows: Sequence[tuple[str, float, float]], *, ann: float | None = None
) -> Panel:
    """The accuracy of each row from a start at zero and from half the threshold, joined by a line.

    Args:
        name: Unique on the page.
        title: The title.
        rows: (label, from zero, from half), the first on top.
        ann: Accuracy of the ANN, a dotted line.
    """
    rows = rows[::-1]
    point: Any = {"linestyle": "none", "marker": "o", "markersize": 7.5}
    hollow = {"color": SERIES[1], "markerfacecolor": "none", "markeredgewidth": 1.6}
    key = [("from half the threshold", {**point, "color": SERIES[0]}), ("from zero", point | hollow)]
    key += [] if ann is None else [(f"ANN {ann:.1f}", _ANN)]
    room = key_room([label for label, _ in key])
    names = [shorten(label, _LONGEST_LABEL) for label, _, _ in rows]
    left = (0.3 + 0.085 * max(map(len, names))) / WIDTH
    figure, axes = new_panel(left, 0.935 - left, height=0.9 + 0.3 * len(rows) + room, room=room)
    for y, (_, zero, half) in enumerate(rows):
        axes.plot([zero, half], [y, y], color=LINE, linewidth=3, zorder=1)
        for (_, look), value in zip(key, (half, zero), strict=False):
            axes.plot([value], [y], **look)
        ahead = half >= zero
        for value, outwards in ((zero, not ahead), (half, ahead)):
            axes.annotate(
                f"{value:.1f}",
                (value, y),
                xytext=(8 if outwards else -8, 0),
                textcoords="offset points",
                ha="left" if outwards else "right",
                va="center",
                fontsize=8.5,
                color=INK,
            )
    if ann is not None:
        axes.axvline(ann, zorder=0, **_ANN)
    axes.set_yticks(range(len(rows)), names, color=INK)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xlim(-8, 108)
    axes.set_xticks([0, 25, 50, 75, 100])
    axes.set_xlabel("accuracy, %")
    clear_axes(axes, "x")
    draw_key(figure, key)
    told = "; ".join(f"{label} {zero:.1f} to {half:.1f}" for label, zero, half in reversed(rows))
    return Panel(title, to_svg(figure, name), f"{title}. From zero to half the threshold: {told}.")


@styled
def draw_heat_map(name: str, title: str, columns: Mapping[float, Mapping[int, float]], steps: int) -> Panel:
    """Accuracy by time step and constant start, with the best start of each step.

    Args:
        name: Unique on the page.
        title: The title.
        columns: For each start, as a fraction of the threshold, the accuracy after each step.
        steps: The last step to show; the first is the first of a column.
    """
    starts = sorted(columns)
    first = min(columns[starts[0]])
    shown = range(first, steps + 1)
    rows = [[columns[start][t] for t in shown] for start in starts]
    figure, axes = new_panel(0.115, 0.74)
    image = axes.imshow(rows, aspect="auto", origin="lower", cmap="viridis", interpolation="none")
    best = [
        max(range(len(starts)), key=lambda i: (rows[i][t], -abs(starts[i] - 0.5))) for t in range(len(shown))
    ]
    marked = range(0, len(shown), -(-len(shown) // _MARKED))
    look: dict[str, Any] = {
        "markersize": 2.6,
        "color": "white",
        "markeredgecolor": "black",
        "markeredgewidth": 0.4,
    }
    axes.plot(marked, [best[t] for t in marked], "o", **look)
    axes.set_yticks(range(len(starts)), [f"{start:g}" for start in starts])
    apart = next(each for each in (4, 8, 25, 100, steps) if steps <= 8 * each)
    ticks = [t for t in shown if t == first or t % apart == 0]
    axes.set_xticks([t - first for t in ticks], [str(t) for t in ticks])
    axes.set_xlabel("time steps; ○ best start of each")
    axes.set_ylabel("start, share of the threshold")
    axes.tick_params(length=0)
    bar = figure.colorbar(image, cax=figure.add_axes((0.88, 0.16, 0.025, 0.78)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8.5)
    bar.ax.set_title("%", fontsize=8.5, color=MUTED, pad=3)
    within = sum(0.4 <= starts[i] <= 0.6 for i in best)
    told = f"The best start lies within 0.4 and 0.6 of the threshold at {within} of {len(shown)} steps."
    return Panel(title, to_svg(figure, name), f"{title}. {told}")


def _scale(axes: "Axes", axis: Axis, left: float, right: float) -> None:
    """Set the horizontal axis up, from the first x to the last."""
    if axis.scale == "even":
        axes.locator_params(axis="x", integer=True)
    else:
        base = 2 if axis.scale == "doubling" else 10
        ticks = _ticks(base, left, right)
        axes.set_xscale("log", base=base)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
    if axis.scale == "tenfold":
        left, right = left / 1.1, right * 1.2  # room for a single point at the edge
    axes.set_xlim(left, right if right > left else 2 * left)


def _ticks(base: int, left: float, right: float) -> list[float]:
    """Places on a logarithmic axis: powers, and as much between them as it takes to have a few."""
    powers = [float(base) ** i for i in range(-12, 13)]
    finer = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)) if base == 10 else ((1,),)
    for within in finer:
        found = [part * power for power in powers for part in within if left <= part * power <= right]
        if len(found) >= _FEWEST_TICKS:
            break
    # A single place is known by its own name, whichever it is.
    return (found or [left])[:: -(-len(found) // _TICKS) or 1]


def _name_axes(axes: "Axes", axis: Axis) -> None:
    axes.set_xlabel(axis.x)
    axes.locator_params(axis="y", steps=[1, 2, 5, 10])
    axes.set_ylabel(axis.y)
    clear_axes(axes, "y")


def _look(curve: Curve) -> dict[str, Any]:
    """How a curve is drawn, in the figure and in its key."""
    if curve.colour is None:
        sign: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.6}
        colour = MUTED
    else:
        sign = {"linewidth": 1.8, "linestyle": _DASHES[curve.colour % len(_DASHES)]}
        colour = SERIES[curve.colour % len(SERIES)]
    if curve.marked:
        sign = {"linestyle": "none", "marker": "o", "markersize": 5.5, "markerfacecolor": "none"}
    return {"color": colour, **sign}


def _tell_curves(title: str, curves: Sequence[Curve], ann: float | None, axis: Axis) -> str:
    told = [title + "."]
    for curve in curves:
        xs = sorted(curve.points)
        picked = [x for x in xs if x in (1, 8, 32, 128)] if axis.scale == "doubling" else [xs[0], xs[-1]]
        values = ", ".join(f"{curve.points[x]:.1f} at {x:g}" for x in picked or [xs[-1]])
        told.append(f"{curve.label}: {values}.")
    if ann is not None:
        told.append(f"Before conversion {ann:.2f}.")
    return " ".join(told)
