"""Drawing: panels as inline SVG that follow the page's colours, light or dark.

Every colour below is written into the SVG as a CSS variable of the page, with the light value to fall back
on. The same numbers give the same bytes.
"""

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_P = ParamSpec("_P")

COLOURS = {
    "#0b0b0c": "--ink",
    "#5f5e5b": "--muted",
    "#dddcd5": "--line",
    "#2a78d6": "--series-1",
    "#d9541e": "--series-2",
    "#148f63": "--series-3",
    "#701065": "--series-4",
    "#2b2391": "--series-5",
    "#4d3a12": "--series-6",
}
INK, MUTED, LINE, *SERIES = COLOURS
WIDTH, HEIGHT = 5.2, 3.5
_KEY_ROW, _KEY_SIGN, _KEY_LETTER = 0.2, 0.34, 0.07  # inches
_LONGEST_KEY = 56  # letters
_STYLE: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": LINE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Panel:
    """A figure ready for a page.

    Attributes:
        title: What it shows.
        svg: The drawing.
        alt: The same in words, for those who cannot see it.
    """

    title: str
    svg: str
    alt: str


def styled(draw: Callable[_P, Panel]) -> Callable[_P, Panel]:
    """Draw in the style above, whatever the user's own style is.

    Such functions first take the name of the figure, unique on its page, and its title.
    """

    @functools.wraps(draw)
    def styled(*args: _P.args, **kwargs: _P.kwargs) -> Panel:
        import matplotlib

        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_STYLE)
            return draw(*args, **kwargs)

    return styled


def shorten(name: str, most: int) -> str:
    """A name that fits next to a figure."""
    return name if len(name) <= most else name[: most - 1] + "…"


def end_of(site: str, most: int) -> str:
    """A site's name, or its end, which tells more than its beginning."""
    return site if len(site) <= most else "…" + site[1 - most :]


def new_panel(left: float, width: float, height: float = HEIGHT, room: float = 0.0) -> "tuple[Figure, Axes]":
    """An empty panel.

    Args:
        left: Where the drawing begins, as a share of the panel's width.
        width: How wide it is, as such a share.
        height: Of the whole panel, in inches.
        room: What to keep free above the drawing, in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    bottom = 0.56 / height
    return figure, figure.add_axes((left, bottom, width, 1 - bottom - (0.21 + room) / height))


def clear_axes(axes: "Axes", grid: Literal["x", "y"]) -> None:
    """Leave the frame at the left and the marks of ticks out, and draw a grid behind the data."""
    axes.grid(axis=grid)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)


def key_room(labels: Sequence[str]) -> float:
    """The height of a key with these labels, in inches."""
    return max((0.1 + y for _, y in _key_places(labels)), default=0.0)


def draw_key(figure: "Figure", entries: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Name the signs of a drawing in rows above it: (label, the look of a line or a marker)."""
    from matplotlib.lines import Line2D

    height = float(figure.get_size_inches()[1])
    for (label, look), (x, y) in zip(entries, _key_places([label for label, _ in entries]), strict=True):
        middle = [1 - y / height] * 2
        line = [(x + inches) / WIDTH for inches in (0.0, 0.26)]
        ends = [sum(line) / 2] * 2 if "marker" in look else line
        figure.add_artist(Line2D(ends, middle, transform=figure.transFigure, **look))
        text = shorten(label, _LONGEST_KEY)
        figure.text((x + _KEY_SIGN) / WIDTH, middle[0], text, color=INK, fontsize=9, va="center")


def _key_places(labels: Sequence[str]) -> list[tuple[float, float]]:
    """Where each label's sign begins, in inches from the left and from the top; full rows are wrapped."""
    places, x, y = [], 0.1, 0.14
    for label in labels:
        width = _KEY_SIGN + _KEY_LETTER * min(len(label), _LONGEST_KEY)
        if x > 0.1 and x + width > WIDTH:
            x, y = 0.1, y + _KEY_ROW
        places.append((x, y))
        x += width + 0.14
    return places


def draw_ticks(
    axes: "Axes", ticks: Iterable[tuple[float, float, float]], colour: str, width: float, **look: Any
) -> None:
    """Upright strokes, each (x, from y, to y).

    They are one broken line, which takes far fewer bytes than separate marks.
    """
    xs: list[float] = []
    ys: list[float] = []
    for x, low, high in ticks:
        xs += [x, x, math.nan]
        ys += [low, high, math.nan]
    axes.plot(xs, ys, color=colour, linewidth=width, solid_capstyle="butt", **look)


def to_svg(figure: "Figure", name: str) -> str:
    """A figure as an element of a page: no prologue, no metadata, names of its own, the page's colours."""
    import matplotlib

    out = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata=nothing)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].rstrip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(?<=<g) id="[^"]*"| transform="rotate\(-0 [^"]*"|(?<=\n) +', "", svg).replace("<g/>\n", "")
    svg = re.sub(r' d="[^"]*"', lambda path: _compress(path[0]), svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*sans-serif", "system-ui, sans-serif", svg)
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    return svg


def _compress(path: str) -> str:
    """A path with two decimals, which is finer than the eye, and upright strokes written as such."""
    short = " ".join(re.sub(r"(\d\.\d\d)\d+", r"\1", path).split())
    return " " + re.sub(r"M (\S+) (\S+) L \1 (\S+) ?", r"M\1 \2V\3", short)
