"""`rheobase compare`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from rheobase.analysis import comparison
from rheobase.cli import models

Cli = Callable[..., str]


def test_methods_with_their_own_training_and_their_own_steps(
    clipped: nn.Module, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "load_or_train", lambda *_: clipped)
    monkeypatch.setattr(models, "method_for", lambda *_: "opi")
    said = cli(
        "compare", "small", "--methods", "opi,max-norm,few-spikes,sigma-delta,opi+signed", "--steps", "4,16",
        "--samples", "64", "--out", "c.html",
    )  # fmt: skip
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [(r["method"], r["initial"]) for r in rows][:2] == [("opi", "zero"), ("opi", "half")]
    assert all(set(r["accuracy"]) == ({"16"} if r["method"] == "few-spikes" else {"4", "16"}) for r in rows)
    assert "few-spikes: answers once, after 30 steps (3 windows of 10), shown from T=10 on" in said
    silence = next(r["silence"] for r in rows if (r["method"], r["initial"]) == ("sigma-delta", "half"))
    assert f"sigma-delta, start half: samples fall silent after {silence['median']} steps" in said
    latencies = {r["method"]: r["timing"]["steps"] * r["timing"]["windows"] for r in rows}
    waits = {"few-spikes": 30, "sigma-delta": silence["largest"]}
    assert latencies == {"opi": 16, "max-norm": 16, "opi + signed": 16, **waits}
    assert "over the whole run" in said  # few-spikes ran for 10 steps, not 16
    assert "<svg" in (tmp_path / "c.html").read_text()


def test_an_interrupted_comparison_keeps_its_rows(
    trained: nn.Module, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = comparison.evaluate, []

    def pressing(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    monkeypatch.setattr(comparison, "evaluate", pressing)
    monkeypatch.setattr(models, "load_or_train", lambda *_: trained)
    said = cli("compare", "small", "--methods", "max-norm", "--steps", "2", code=130)
    assert f"max-norm: {comparison.STOPPED}" in said
