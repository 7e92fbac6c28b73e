"""Figures of single neurons on one sample."""

import base64
import io

import pytest

from rheobase.analysis.diagnosis.traces import SiteTrace, Trace
from rheobase.reports.trace_figures import draw_membranes, draw_raster, embed


def test_spikes_and_membranes_are_described_in_words():
    seen = SiteTrace(200, 2, [4, 7], [[1, 2, 3], [3]], {0: [0.5, 0.9, 0.2, 0.1], 1: [0.0, 0.3, 0.6, 1.2]})
    found = Trace(0, "cat", 3, ["cat"] * 3, [], {"site": seen})
    assert "site: 2 of 200 neurons fire" in draw_raster("name", "title", found).alt
    assert "site 3 and 1" in draw_membranes("name", "title", found).alt


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_embedded_as_png(channels):
    image = pytest.importorskip("PIL.Image")
    source = embed([[[7] * channels, [250] * channels]])
    decoded = image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,"))))
    assert decoded.size == (2, 1)
    assert decoded.getpixel((1, 0)) == (250 if channels == 1 else (250,) * 3)
