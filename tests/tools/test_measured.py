"""Rows of benchmark records, with numbers that nobody measured."""

import json

import pytest

from tools import measured


@pytest.fixture
def record(tmp_path, monkeypatch):
    def row(contender, median, **rest):
        size = {"model": "vgg16", "batch": 4, "steps": 8, "repeats": 5}
        return size | {"contender": contender, "median": median, "images_per_second": 4 / median} | rest

    rows = [
        row("SpikingJelly, step loop", 4.0),
        row("SpikingJelly, multi-step", 2.0),
        row("SpikingJelly, tuned", 0.5, repeats=1),
        row("rheobase, fast, 640 MiB", 0.1),
        row("rheobase, fast", 1.0),
        row("rheobase, fast", 0.5, steps=16),
        {"model": "vgg16", "contender": "rheobase, int8", "batch": 4, "steps": 8, "left_out": "no room"},
    ]
    (tmp_path / "new.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "newer.json").write_text(json.dumps({"rows": [row("rheobase, fast", 0.8)]}))
    monkeypatch.setattr(measured, "FOLDER", tmp_path)
    measured.read.cache_clear()
    yield
    measured.read.cache_clear()


def test_the_best_row_of_a_size_counts(record):
    assert measured.speed("new", "SpikingJelly", "vgg16", 4, 8) == 8.0
    assert measured.speed("new", "rheobase, fast", "vgg16", 4, 8) == 4.0  # not the one with a cap on memory
    assert measured.speed("new", "rheobase, int8", "vgg16", 4, 8) is None


def test_a_time_is_of_the_first_record_that_repeated_it(record):
    size = ("vgg16", 4, 8)
    assert measured.milliseconds(["newer", "new"], "rheobase, fast", *size) == 800.0
    assert measured.milliseconds(["newer", "new"], "SpikingJelly", *size) == 2000.0
    assert measured.milliseconds(["newer"], "SpikingJelly", *size) is None
