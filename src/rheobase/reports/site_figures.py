"""Figures with a row for every site: bars, stacked parts, one mark for each channel, histograms."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rheobase.analysis import Histogram, spread
from rheobase.reports.drawing import (
    INK,
    LINE,
    MUTED,
    SERIES,
    WIDTH,
    Panel,
    clear_axes,
    draw_key,
    draw_ticks,
    end_of,
    key_room,
    new_panel,
    styled,
    to_svg,
)
from rheobase.reports.tables import significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROWS, CELLS = 40, 12
_LONGEST_NAME = 20
_PLACES = 120  # along an axis that can be told apart


@styled
def draw_bars(name: str, title: str, rows: Mapping[str, float], unit: str) -> Panel:
    """A bar for every site, given its value and the unit of all."""
    shown = {row: rows[row] for row in largest(rows, ROWS)}
    figure, axes = _row_panel(list(shown), unit)
    axes.barh(range(len(shown)), list(shown.values()), height=0.62, color=SERIES[0])
    for y, value in enumerate(shown.values()):
        axes.annotate(
            significant(value),
            (value, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
        )
    axes.set_xlim(0, 1.15 * max([*shown.values(), 1e-9]))
    return Panel(title + _left_out(rows, shown), to_svg(figure, name), f"{title}, {unit}: {_list(rows)}.")


@styled
def draw_stacks(name: str, title: str, rows: Mapping[str, Mapping[str, float]], unit: str) -> Panel:
    """A bar for every site, of parts that sum to a whole; parts below zero lie to the left."""
    totals = {row: sum(parts.values()) for row, parts in rows.items()}
    shown = largest(totals, ROWS)
    names = list(next(iter(rows.values())))
    key = {**dict(zip(names, SERIES, strict=False)), "sum": INK}
    figure, axes = _row_panel(shown, unit, room=key_room(list(key)))
    for y, row in enumerate(shown):
        ends = {True: 0.0, False: 0.0}
        for i, part in enumerate(names):
            value = rows[row][part]
            axes.barh(y, value, left=ends[value > 0], height=0.62, color=SERIES[i], edgecolor="none")
            ends[value > 0] += value
        axes.plot([totals[row]] * 2, [y - 0.4, y + 0.4], color=INK, linewidth=1.4, solid_capstyle="butt")
    axes.axvline(0, color=MUTED, linewidth=0.8)
    axes.margins(x=0.04)
    square = {"linestyle": "none", "marker": "s", "markersize": 6.5}
    draw_key(figure, [(part, {**square, "color": colour}) for part, colour in key.items()])
    told = "; ".join(f"{part} {_list({row: rows[row][part] for row in shown})}" for part in names)
    return Panel(title + _left_out(rows, shown), to_svg(figure, name), f"{title}, {unit}: {told}.")


@styled
def draw_marks(name: str, title: str, rows: Mapping[str, Sequence[float]], unit: str) -> Panel:
    """A row of marks for every site, one mark for the value of each of its channels."""
    spreads = {row: max(map(abs, values)) for row, values in rows.items() if values}
    shown = largest(spreads, ROWS)
    figure, axes = _row_panel(shown, unit)
    low, high = min(min(rows[row]) for row in shown), max(max(rows[row]) for row in shown)
    place = (max(high, 0) - min(low, 0)) / _PLACES or 1.0
    for y, row in enumerate(shown):
        values = _apart(rows[row], place)
        if len(values) == 1:
            axes.plot(values, [y], "o", color=SERIES[0], markersize=6)
        else:
            draw_ticks(axes, [(value, y - 0.3, y + 0.3) for value in values], SERIES[0], 1.4)
    axes.axvline(0, color=MUTED, linewidth=0.8)
    margin = 0.05 * (max(high, 0) - min(low, 0)) or 1.0
    axes.set_xlim(min(low, 0) - (margin if low < 0 else 0), max(high, 0) + margin)
    told = "; ".join(f"{row} {min(rows[row]):.3g} to {max(rows[row]):.3g}" for row in shown)
    return Panel(title + _left_out(spreads, shown), to_svg(figure, name), f"{title}, {unit}: {told}.")


@styled
def draw_histograms(name: str, title: str, histograms: Mapping[str, Histogram]) -> Panel:
    """The activations of each site, with a line at each threshold."""
    from matplotlib.figure import Figure

    shown = spread([site for site, found in histograms.items() if found.top > 0], CELLS)
    columns = 2
    lines = -(-len(shown) // columns)
    height = 0.1 + 1.15 * lines
    figure = Figure(figsize=(WIDTH, height))
    for i, site in enumerate(shown):
        row, column = divmod(i, columns)
        bottom = 1 - (0.92 + 1.15 * row) / height
        axes = figure.add_axes((0.03 + 0.5 * column, bottom, 0.44, 0.62 / height))
        _draw_histogram(axes, histograms[site], site)
    told = "; ".join(f"{site} {_tell_histogram(histograms[site])}" for site in shown)
    left_out = _left_out(histograms, shown)
    return Panel(title + left_out, to_svg(figure, name), f"{title}. {told}.")


@styled
def draw_counts(name: str, title: str, counts: Sequence[int], what: str) -> Panel:
    """How many of something there are at the steps 1, 2, …."""
    figure, axes = new_panel(0.125, 0.84, height=2.8)
    axes.bar(range(1, len(counts) + 1), counts, width=0.75, color=SERIES[0])
    axes.set_xlim(0.4, len(counts) + 0.6)
    axes.locator_params(axis="both", integer=True)
    axes.set_xlabel("time steps")
    axes.set_ylabel(what)
    clear_axes(axes, "y")
    told = ", ".join(f"{count} at {t}" for t, count in enumerate(counts, 1) if count)
    return Panel(title, to_svg(figure, name), f"{title}, {what}: {told}.")


def largest(rows: Mapping[str, float], most: int) -> list[str]:
    """The names of the rows with the largest values, at most the given number, in their own order."""
    kept = set(sorted(rows, key=lambda row: -rows[row])[:most])
    return [row for row in rows if row in kept]


def _row_panel(rows: Sequence[str], unit: str, room: float = 0.0) -> "tuple[Figure, Axes]":
    """A panel with a line for every row, the first at the top, and room above for a key."""
    names = [end_of(row, _LONGEST_NAME) for row in rows]
    left = (0.2 + 0.082 * max(map(len, names), default=1)) / WIDTH
    height = 0.85 + room + 0.23 * len(rows)
    figure, axes = new_panel(left, 0.97 - left, height=height, room=room)
    axes.set_yticks(range(len(rows)), names, color=INK, fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel(unit)
    clear_axes(axes, "x")
    axes.locator_params(axis="x", nbins=6)
    return figure, axes


def _apart(values: Sequence[float], place: float) -> list[float]:
    """One value for each place along the axis: marks on top of each other show no more than one."""
    return sorted({round(value / place): value for value in sorted(values)}.values())


def _draw_histogram(axes: "Axes", found: Histogram, site: str) -> None:
    width = found.top / len(found.counts)
    edges = [width * i for i in range(len(found.counts) + 1)]
    axes.stairs(found.counts, edges, fill=True, color=SERIES[0], alpha=0.55)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.5)
    right = max([found.top, *found.thresholds])
    upright = [(threshold, 0.0, 1.0) for threshold in _apart(found.thresholds, right / _PLACES)]
    draw_ticks(
        axes, upright, SERIES[1], 1.3 if len(upright) < 8 else 0.7, transform=axes.get_xaxis_transform()
    )
    axes.set_xlim(0, 1.04 * right)
    axes.locator_params(axis="x", nbins=4)
    axes.set_yticks([])
    axes.set_yticks([], minor=True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0, labelsize=8.5, pad=2)
    axes.set_title(end_of(site, _LONGEST_NAME), fontsize=9, color=INK, loc="left", pad=2)
    axes.spines["bottom"].set_color(LINE)


def _tell_histogram(found: Histogram) -> str:
    total = sum(found.counts) + found.zeros
    marks = found.thresholds or [0.0]
    span = f"{min(marks):.3g}" if len(set(marks)) == 1 else f"{min(marks):.3g} to {max(marks):.3g}"
    return f"{found.zeros / total:.0%} zero, up to {found.top:.3g}, threshold {span}"


def _left_out(rows: Mapping[str, object], shown: Sequence[str] | Mapping[str, object]) -> str:
    return "" if len(rows) == len(shown) else f" ({len(shown)} of {len(rows)} sites)"


def _list(values: Mapping[str, float]) -> str:
    return ", ".join(f"{row} {value:.3g}" for row, value in values.items())
