"""Curves: readable ticks, any length, within their panel."""

import xml.etree.ElementTree as ET

import pytest

from rheobase.reports import curves


@pytest.mark.parametrize(
    ("left", "right", "ticks"),
    [
        (0.0135, 6.0, ["0.03", "0.1", "0.3", "1", "3"]),
        (0.0135, 0.0256, ["0.015", "0.02"]),
        (0.02, 0.5, ["0.03", "0.1", "0.3"]),
        (1e-4, 1e4, ["0.0001", "0.01", "1", "100", "10000"]),
        (3.3, 3.3, ["3.3"]),
    ],
)
def test_an_axis_of_energies_has_ticks_to_read_it_by(left, right, ticks):
    curve = curves.Curve("a", {left: 1.0, right: 2.0}, 0)
    panel = curves.draw_curves("name", "title", [curve], axis=curves.Axis(scale="tenfold"))
    texts = [element.text for element in ET.fromstring(panel.svg).findall(".//{*}text")]
    assert texts[: len(ticks) + 1] == [*ticks, "time steps"]


@pytest.mark.parametrize("steps", [1, 2, 600])
def test_curves_of_any_length_can_be_drawn(steps):
    curve = curves.Curve("x" * 60, {float(t): 50.0 for t in range(1, steps + 1)}, 7)
    panel = curves.draw_curves("name", "title", [curve] * 20, ann=50.0)
    assert ET.fromstring(panel.svg).tag.endswith("svg")
    assert "…" in panel.svg


def test_keys_are_whole_and_in_the_order_of_colours_whatever_the_order_of_drawing():
    label = "a method with a long name and settings, start half"
    names = {label: 0, "zero, printed": 1, "uniform": 2, "behind": None}
    found = [curves.Curve(name, {1.0: 5.0 * i, 9.0: 50.0}, c) for i, (name, c) in enumerate(names.items())]
    for order in (found, found[::-1]):
        panel = curves.draw_curves("name", "title", order, ann=50.0)
        texts = [element.text for element in ET.fromstring(panel.svg).findall(".//{*}text")]
        assert [text for text in texts if text in names or "ANN" in text] == [*names, "ANN 50.00"]


def test_gains_keep_the_order_given():
    rows = [("low", 1.0, 2.0), ("high", 3.0, 4.0)]
    texts = [e.text for e in ET.fromstring(curves.draw_gains("a", "b", rows).svg).findall(".//{*}text")]
    assert texts.index("high") < texts.index("low")  # from the bottom up
    assert texts[-2:] == ["from half the threshold", "from zero"]


def test_gains_and_heat_maps_are_described_in_words():
    panel = curves.draw_gains("name", "title", [("opi", 10.0, 90.0), ("<tcl>", 20.0, 15.0)], ann=95.0)
    assert "opi 10.0 to 90.0" in panel.alt
    assert "<tcl>" not in panel.svg
    columns = {0.25: {1: 10.0, 2: 50.0}, 0.5: {1: 20.0, 2: 40.0}}
    assert "1 of 2 steps" in curves.draw_heat_map("name", "title", columns, 2).alt
