"""`rheobase evaluate`."""

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rheobase
from rheobase.cli import console
from rheobase.cli.commands import evaluate
from rheobase.reports import RunRecord
from rheobase.training import datasets
from rheobase.training.datasets.split import Dataset, Split

Cli = Callable[..., str]


@pytest.fixture
def network(trained: nn.Module, digits: Dataset, tmp_path: Path) -> str:
    rheobase.save(rheobase.convert(trained, "max-norm", digits.train.take(50)), tmp_path / "snn.safetensors")
    return "snn.safetensors"


@contextmanager
def interrupted_after(batch: int) -> Iterator[None]:
    """Somebody presses Ctrl-C after the given number of batches."""
    batches = Split.batches

    def pressing(split: Split, size: int) -> Iterator[Any]:
        for number, given in enumerate(batches(split, size)):
            if number == batch:
                signal.raise_signal(signal.SIGINT)
            yield given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Split, "batches", pressing)
        yield


def test_an_interrupted_evaluation_keeps_its_images(cli: Cli, network: str, tmp_path: Path) -> None:
    command = ("evaluate", network, "--steps", "2", "--record", "part.json")
    with interrupted_after(2):
        assert "240 of 360" in cli(*command, code=130)
    part = json.loads((tmp_path / "part.json").read_text())
    assert part["evaluation"]["samples"] == 240
    assert "240 of 360" in part["title"]
    with interrupted_after(2):
        cli(*command, "--exit", "margin", "--lose", "50", code=130)
    part = json.loads((tmp_path / "part.json").read_text())
    assert (part["evaluation"]["samples"], part["exit"]) == (240, "")  # no image has left early yet
    with interrupted_after(0):
        assert "accuracy" not in cli("evaluate", network, "--steps", "2", code=130)


def test_an_interrupted_evaluation_has_seen_all_classes(
    cli: Cli, network: str, digits: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order = digits.test.labels.argsort(stable=True)
    sorted_ = replace(digits.test, images=digits.test.images[order], labels=digits.test.labels[order])
    monkeypatch.setattr(datasets, "load", lambda *_, **__: replace(digits, test=sorted_))
    command = ("evaluate", network, "--steps", "2", "--record", "r.json")
    seen: list[int] = []
    monkeypatch.setattr(
        evaluate, "_describe", lambda _, split, n: seen.extend(split.labels[:n].tolist()) or {}
    )
    with interrupted_after(1):
        cli(*command, code=130)
    assert set(seen) == set(range(10))
    cli(*command)
    whole = json.loads((tmp_path / "r.json").read_text())["evaluation"]["accuracy"]
    expected = rheobase.evaluate(rheobase.load(tmp_path / network), digits.test, 2).accuracy
    assert whole == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("lose", "images", "loss"), [(None, 2000, 0.2), (None, 1437, 0.22), (0.0, 1437, 0.0), (0.1, 1437, 0.1)]
)
def test_a_rule_is_fitted_in_the_arithmetic_that_runs(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, lose: float | None, images: int, loss: float
) -> None:
    passed: dict[str, Any] = {}
    monkeypatch.setattr(rheobase, "fit_exit", lambda *_, **settings: passed.update(settings))
    drawn = torch.arange(images) % len(digits.train)
    train = replace(digits.train, images=digits.train.images[drawn], labels=digits.train.labels[drawn])
    _, said = evaluate._fit_rule(None, replace(digits, train=train), "margin", 4, "int8", lose)
    assert passed == {"steps": 4, "loss": loss, "profile": "int8"}
    assert f"{images:,} training images" in said
    assert f"{loss:g} points" in said
    assert ("least" in said) == (loss == 0.22)


def test_an_exit_rule_needs_no_further_options(cli: Cli, network: str) -> None:
    shown = cli("evaluate", network, "--steps", "6", "--exit", "margin", "--limit", "20")
    assert "1,437 training images" in shown
    assert "0.22 points" in shown
    assert "saved:" in shown


def test_results_are_written_before_they_are_shown(
    cli: Cli, network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise BrokenPipeError(32, "the reader is gone")

    monkeypatch.setattr(console, "show_evaluations", break_off)
    cli("evaluate", network, "--steps", "2", "--limit", "20", "--record", "r.json", code=1)
    assert json.loads((tmp_path / "r.json").read_text())["evaluation"]["samples"] == 20


@pytest.mark.parametrize("closed", ["", ">&- 2>&-"])
def test_it_works_without_a_terminal_and_its_letters(network: str, tmp_path: Path, closed: str) -> None:
    command = shlex.join([sys.executable, "-m", "rheobase.cli", "evaluate", network])
    done = subprocess.run(
        f"{command} --steps 2 --limit 20 --record é.json {closed}",
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "é.json").exists()
    assert (b"J\n" in done.stdout) == (not closed)


def test_latency_and_silence_are_printed(
    cli: Cli, trained: nn.Module, digits: Dataset, tmp_path: Path
) -> None:
    snn = rheobase.convert(trained, "sigma-delta", digits.train.take(50), levels=8, sizes=3)
    rheobase.save(snn, tmp_path / "sums.safetensors")
    said = cli("evaluate", "sums.safetensors", "--steps", "12", "--record", "r.json", "--page", "p.html")
    result = RunRecord.read(tmp_path / "r.json").evaluation
    assert result.silence is not None
    assert str(result.silence)[1:] in said
    assert result.timing is not None
    assert f"latency {result.timing.total} steps" in said
    assert "6 lines per neuron" in said
    assert str(result.silence) in (tmp_path / "p.html").read_text()
    early = cli("evaluate", "sums.safetensors", "--steps", "12", "--exit", "margin", "--lose", "1")
    assert "Early exit, margin" in early
