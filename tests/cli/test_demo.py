"""`rheobase demo`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

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
