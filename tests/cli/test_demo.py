"""`rheobase demo`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from rheobase.reports import RunRecord
from rheobase.training.recipe import RECIPES


def test_a_page_and_a_record_for_each_start(
    cli: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], epochs=2, warmup_epochs=1))
    said = cli("demo", "--out", "here")
    half, zero = (RunRecord.read(tmp_path / "here" / f"{name}.json") for name in ("half", "zero"))
    assert half.evaluation.at(4).accuracy > zero.evaluation.at(4).accuracy
    assert f"{half.evaluation.at(32).accuracy:.1f}" in said
    exact = RunRecord.read(tmp_path / "here" / "sigma-delta.json")
    assert exact.method == "sigma-delta"
    assert exact.evaluation.at(4).accuracy > zero.evaluation.at(4).accuracy
    assert exact.evaluation.silence is not None
    assert str(exact.evaluation.silence) in said
    assert "<svg" in (tmp_path / "here" / "index.html").read_text()


def test_a_folder_of_few_pictures_in_colour(
    cli: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], epochs=2, warmup_epochs=1))
    generator = np.random.default_rng(0)
    for half, count in (("train", 12), ("test", 4)):
        for name, brightness in (("dark", 90), ("light", 200)):
            folder = tmp_path / "pictures" / half / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = generator.random((16, 16, 3)) * brightness
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    assert "24 images of pictures" in cli("demo", "--data", str(tmp_path / "pictures"), "--out", "here")
    assert (tmp_path / "here" / "index.html").exists()
