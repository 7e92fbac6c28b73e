"""The look of figures: colours that can be read and told apart, whatever the user's own style."""

import re
from pathlib import Path

import matplotlib

from rheobase.reports import curves, drawing

STYLE = Path(curves.__file__).with_name("templates") / "style.css"


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
