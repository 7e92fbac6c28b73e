"""Figures with a row for every site."""

import re

import pytest

from rheobase.analysis.diagnosis.histograms import Histogram
from rheobase.reports.site_figures import (
    draw_bars,
    draw_counts,
    draw_histograms,
    draw_marks,
    draw_stacks,
    largest,
)


def test_a_threshold_is_drawn_where_it_is():
    """Rounded to two digits, one at the very top of the activations would stand away from them."""
    top = 1.06462
    panel = draw_histograms("name", "title", {"site": Histogram(top, [5] * 40, 0, [top, top])})
    paths = re.findall(r' d="([^"]*)"', panel.svg)
    bars = max(float(x) for x in re.findall(r"[ML] ?([\d.]+) ", max(paths, key=len)))
    (line,) = {
        float(path[1]) for path in map(re.compile(r" ?M([\d.]+) [\d.]+V[\d.]+").fullmatch, paths) if path
    }
    assert bars == pytest.approx(line, abs=0.1)


def test_of_many_sites_those_with_the_largest_values_are_drawn():
    rows = {f"site{i}": float(i) for i in range(100)}
    assert largest(rows, 3) == ["site97", "site98", "site99"]
    panel = draw_bars("name", "title", rows, "spikes")
    assert panel.title == "title (40 of 100 sites)"


def test_stacks_marks_and_counts_are_described_in_words():
    stacks = {"a": {"clipping": 3.0, "inherited": -1.0}, "b": {"clipping": 1.0, "inherited": 2.0}}
    assert "clipping a 3, b 1; inherited a -1, b 2" in draw_stacks("name", "title", stacks, "%").alt
    assert "a 1 to 2; b 5 to 5" in draw_marks("name", "title", {"a": [1.0, 2.0], "b": [5.0]}, "unit").alt
    assert "7 at 1, 3 at 3" in draw_counts("name", "title", [7, 0, 3], "images").alt
