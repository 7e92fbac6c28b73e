"""Figures of single neurons on one sample: when they fire, and what their membranes do."""

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rheobase.analysis import Trace
from rheobase.reports.drawing import (
    INK,
    LINE,
    MUTED,
    SERIES,
    WIDTH,
    Panel,
    draw_ticks,
    end_of,
    new_panel,
    styled,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 18


@styled
def draw_raster(name: str, title: str, found: Trace) -> Panel:
    """A mark for every spike: time to the right, neurons downwards, the busiest of each site on top."""
    figure, axes = _band_panel(found)
    top, told, ticks = 0, [], []
    for i, (site, seen) in enumerate(found.sites.items()):
        marks = [(t, top + row, top + row + 0.82) for row, ts in enumerate(seen.spikes) for t in ts]
        draw_ticks(axes, marks, SERIES[i % len(SERIES)], 2.4)
        height = max(1, len(seen.neurons))
        ticks.append((top + height / 2, site))
        axes.axhline(top + height + 1, color=LINE, linewidth=0.6)
        top += height + 2
        told.append(f"{site}: {seen.fired} of {seen.size} neurons fire")
    axes.set_ylim(top - 1, -1)
    _finish(axes, found.steps, ticks)
    return Panel(title, to_svg(figure, name), f"{title}. {'; '.join(told)}.")


@styled
def draw_membranes(name: str, title: str, found: Trace) -> Panel:
    """The potentials of one or two neurons of each site, with a point at every spike."""
    sites = {site: seen for site, seen in found.sites.items() if seen.membranes}
    figure, axes = _band_panel(found)
    told, ticks = [], []
    for i, (site, seen) in enumerate(sites.items()):
        every = [level for levels in seen.membranes.values() for level in levels]
        low = min(0.0, *every)
        span = max(1.0, *every) - low
        # Each site has a band of its own, one high.
        base = len(sites) - 1 - i
        threshold, zero = (base + 0.88 * (level - low) / span for level in (1.0, 0.0))
        axes.axhline(threshold, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
        axes.axhline(zero, color=LINE, linewidth=0.6)
        for (row, levels), width in zip(seen.membranes.items(), (1.5, 0.9), strict=False):
            ys = [base + 0.88 * (level - low) / span for level in levels]
            colour = SERIES[i % len(SERIES)]
            xs = [*range(len(levels)), len(levels) - 0.5]
            axes.plot(xs, [*ys, ys[-1]], color=colour, linewidth=width, drawstyle="steps-post")
            fired = seen.spikes[row]
            axes.plot(fired, [ys[t] for t in fired], ".", color=colour, markersize=4 * width)
        ticks.append((base + 0.44, site))
        told.append(f"{site} {' and '.join(str(len(seen.spikes[row])) for row in seen.membranes)}")
    axes.set_ylim(-0.1, len(sites))
    _finish(axes, found.steps, ticks)
    return Panel(title, to_svg(figure, name), f"{title}. Spikes of those shown: {'; '.join(told)}.")


def embed(rows: list[list[list[int]]]) -> str:
    """Pixels as the address of an image inside the page."""
    import numpy as np
    from PIL import Image

    pixels = np.array(rows, dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(out, "png")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def _band_panel(found: Trace) -> "tuple[Figure, Axes]":
    """A panel with room for the names of sites at its left, as high for membranes as for spikes."""
    left = (0.2 + 0.082 * max(len(end_of(site, _LONGEST_NAME)) for site in found.sites)) / WIDTH
    rows = sum(max(1, len(site.neurons)) + 2 for site in found.sites.values())
    return new_panel(left, 0.97 - left, min(5.5, 0.9 + 0.036 * rows))


def _finish(axes: "Axes", steps: int, ticks: Sequence[tuple[float, str]]) -> None:
    axes.set_xlim(0, steps + 0.5)
    axes.set_yticks(
        [y for y, _ in ticks], [end_of(site, _LONGEST_NAME) for _, site in ticks], color=INK, fontsize=9
    )
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("time steps")
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
