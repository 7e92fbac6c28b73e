"""The look of figures: colours that can be read and told apart, whatever the user's own style."""

import itertools
import math
import re
from pathlib import Path

import matplotlib
import pytest

from rheobase.reports import curves, drawing

STYLE = Path(curves.__file__).with_name("templates") / "style.css"


# How colours are seen without one of the three kinds of cones: Machado, Oliveira and Fernandes, 2009.
BLINDNESS = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}


def test_a_page_follows_light_and_dark_with_readable_colours():
    curve = curves.Curve("a", {1.0: 1.0, 2.0: 2.0}, 0)
    text = curves.draw_curves("name", "title", [curve, curves.Curve("b", curve.points, 1)]).svg
    for variable in ("--ink", "--muted", "--line", "--series-1", "--series-2"):
        assert f"var({variable}, " in text
    light, dark = (
        dict(re.findall(r"(--[\w-]+): (#\w{6})", part)) for part in STYLE.read_text().split("@media")[:2]
    )
    for scheme in (light, dark):
        for name in drawing.COLOURS.values():
            least = 1.2 if name == "--line" else 3.0 if name.startswith("--series") else 4.5
            assert contrast(scheme[name], scheme["--surface"]) >= least, name
    assert {colour: light[name] for colour, name in drawing.COLOURS.items()} == {
        c: c for c in drawing.COLOURS
    }


@pytest.mark.parametrize("kind", BLINDNESS)
def test_curves_can_be_told_apart_by_those_who_see_fewer_colours(kind):
    def seen(colour):
        linear = to_linear(colour)
        red, green, blue = (
            min(1, max(0, sum(w * c for w, c in zip(row, linear, strict=True)))) for row in BLINDNESS[kind]
        )
        xyz = (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
        )
        x, y, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz)
        return 116 * y - 16, 500 * (x - y), 200 * (y - z)

    for part in STYLE.read_text().split("@media")[:2]:
        colours = re.findall(r"--series-\d: (#\w{6})", part)
        assert len(colours) == 6
        for one, other in itertools.combinations(colours, 2):
            assert math.dist(seen(one), seen(other)) > 14, (one, other)  # 2 is just seen, side by side


def to_linear(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]


def contrast(one, other):
    """The contrast ratio of two colours as WCAG defines it."""

    def luminance(colour):
        linear = to_linear(colour)
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_users_own_plot_style_changes_nothing():

    curve = curves.Curve("a", {1.0: 1.0, 2.0: 2.0}, 0)
    plain = curves.draw_curves("name", "title", [curve])
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "axes.grid": True}):
        assert curves.draw_curves("name", "title", [curve]) == plain
        assert matplotlib.rcParams["font.size"] == 30
