"""Advice: a budget is kept or said to be out of reach, and nothing is measured on what was fitted."""

import copy
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase import convert, evaluate, methods
from rheobase.analysis import advice as advising
from rheobase.analysis.advice import advise
from rheobase.analysis.energy import CMOS_45NM
from rheobase.analysis.trials import Advice, Budget
from rheobase.io import progress
from rheobase.training import datasets

CHEAP = ["max-norm", "opi", "opt", "robust-norm", "tcl"]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some quick methods, so that the whole plan runs in seconds."""
    monkeypatch.setattr(methods, "names", lambda: CHEAP)


def ask(model: nn.Module, data, budget: Budget, **options) -> Advice:
    return advise(model, data, budget, progress=False, **options)


def key(advice: Advice) -> list[tuple[str, int, float, bool]]:
    return [(t.name, t.steps, t.accuracy, t.met) for t in advice.trials]


@pytest.mark.usefixtures("few")
def test_a_loss_is_kept_with_few_steps(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(300)
    before = copy.deepcopy(trained.state_dict())
    advice = ask(trained, data, Budget(accuracy_loss=1.0))
    assert all(torch.equal(v, trained.state_dict()[k]) for k, v in before.items())
    assert advice.met
    assert advice.measure == "accuracy"
    assert advice.chosen.accuracy >= advice.ann - 1.0
    assert advice.chosen.steps == min(t.steps for t in advice.trials if t.met)
    assert str(advice.chosen.initial) == "half"
    met = [t.steps for t in advice.trials if t.met]
    assert met == sorted(met, reverse=True)  # later ones must be faster
    assert len(set(met)) == len(met)
    assert [t.method.name for t in advice.trials if t.note] == ["opi", "tcl"]
    assert advice.chosen.name in advice.verdict
    assert key(ask(trained, data, Budget(accuracy_loss=1.0))) == key(advice)
    elsewhere = evaluate(advice.snn, digits.test, advice.chosen.steps, progress=False)
    assert elsewhere.accuracy[-1] > 90


@pytest.mark.usefixtures("few")
def test_the_first_that_keeps_to_everything_is_taken(clipped: nn.Module, digits: datasets.Dataset) -> None:
    advice = ask(clipped, digits.train.take(200), Budget(accuracy_loss=2.0, steps=8))
    assert advice.met
    assert len(advice.trials) == 1  # the trained thresholds, which need no data
    assert advice.chosen.steps <= 8


@pytest.mark.usefixtures("few")
def test_steps_alone_ask_for_the_best_accuracy(trained: nn.Module, digits: datasets.Dataset) -> None:
    advice = ask(trained, digits.train.take(200), Budget(steps=1))
    assert advice.met
    assert all(t.steps <= 1 for t in advice.trials)
    assert advice.chosen.accuracy == max(t.accuracy for t in advice.trials)
    tried = [(t.method, str(t.initial)) for t in advice.trials]
    assert (methods.get("robust-norm"), "half") in tried
    assert (methods.get("robust-norm", percentile=99.0), "half") in tried
    assert (methods.get("opt", steps=1), "zero") in tried
    costs = [methods.COSTS.index(t.method.cost) for t in advice.trials[: len(CHEAP)]]
    assert costs == sorted(costs)


@pytest.mark.usefixtures("few")
def test_joules_limit_the_steps(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(120)
    advice = ask(trained, data, Budget(joules=1.5e-8), most_steps=16)
    assert advice.met
    assert 0 < advice.chosen.joules <= 1.5e-8
    spent = evaluate(advice.snn, digits.test, advice.chosen.steps, progress=False).joules[-1]
    assert spent == pytest.approx(advice.chosen.joules, rel=0.2)


@pytest.mark.usefixtures("few")
def test_out_of_reach(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(100)
    advice = ask(trained, data, Budget(accuracy_loss=0.0, steps=1))
    assert not advice.met
    assert advice.chosen.accuracy == max(t.accuracy for t in advice.trials)
    proven = ask(trained, data, Budget(joules=1e-12), convention=CMOS_45NM)
    assert not proven.met
    assert len([t for t in proven.trials if not t.note]) == 1  # the first layer alone costs more


@pytest.mark.usefixtures("few")
def test_what_is_fitted_is_not_measured(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[Tensor] = []
    measured: list[Tensor] = []

    def converting(model, method, calibration, **options):
        fitted.append(calibration)
        return convert(model, method, calibration, **options)

    def evaluating(snn, data, *args, **options):
        measured.append(data[0])
        return evaluate(snn, data, *args, **options)

    monkeypatch.setattr(advising, "convert", converting)
    monkeypatch.setattr(advising, "evaluate", evaluating)
    x = digits.train.normalise(digits.train.images[:60])
    advice = ask(trained, x, Budget(steps=3), hold_out=0.25)
    assert (advice.measure, advice.ann) == ("agreement", 100.0)
    assert all(len(f) == 45 for f in fitted)
    assert all(len(m) == 15 for m in measured)
    rows = {tuple(row.flatten().tolist()) for row in fitted[0]}
    assert not rows & {tuple(row.flatten().tolist()) for row in measured[0]}
    other = ask(trained, x, Budget(steps=3), hold_out=0.25, seed=1)
    assert not torch.equal(fitted[-1], fitted[0])
    assert other.measure == "agreement"


def test_lines_are_shown(
    clipped: nn.Module, digits: datasets.Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = advise(clipped, digits.train.take(60), Budget(accuracy_loss=50, steps=8))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [str(t) for t in advice.trials]


def interrupt(patch: pytest.MonkeyPatch, at: int) -> None:
    """Somebody presses Ctrl-C during the conversion of this number."""
    count = 0

    def converting(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == at:
            raise KeyboardInterrupt
        return convert(*arguments, **options)

    patch.setattr(advising, "convert", converting)


@pytest.mark.usefixtures("few")
def test_an_interrupted_search_gives_the_best_until_then(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = digits.train.take(100)
    whole = ask(trained, data, Budget(steps=2))
    assert not whole.interrupted
    with monkeypatch.context() as patch:
        interrupt(patch, at=5)
        advice = ask(trained, data, Budget(steps=2))
    assert advice.interrupted
    assert "4 trials" in advice.verdict
    assert key(advice) == key(whole)[:4]
    assert advice.chosen.accuracy == max(t.accuracy for t in advice.trials)
    assert evaluate(advice.snn, digits.test.take(50), advice.chosen.steps, progress=False).accuracy[-1] > 0
    advice.write(tmp_path / "advice.json")
    kept = json.loads((tmp_path / "advice.json").read_text())
    assert kept["interrupted"]
    assert kept["chosen"] in kept["trials"]
    assert [t["method"] for t in kept["trials"]] == [t.method.name for t in advice.trials]
    assert [t["accuracy"] for t in kept["trials"]] == [t.accuracy for t in advice.trials]
    interrupt(monkeypatch, at=1)
    with pytest.raises(KeyboardInterrupt):
        ask(trained, data, Budget(steps=2))


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A console of its own, as one keeps the width that it was made with."""
    for name, value in {"COLUMNS": "120", "LINES": "8", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    progress._console.cache_clear()
    yield
    progress._console.cache_clear()


@pytest.mark.usefixtures("few", "wide")
def test_the_table_grows_on_a_terminal(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    advice = advise(trained, digits.train.take(60), Budget(steps=2))
    written = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert "advising" in written
    left = written[written.rindex("tried ") :]  # the last table is the one that stays
    assert all(t.name in left for t in advice.trials)
    assert left.count("met") == sum(t.met for t in advice.trials)
    assert "µJ" in left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_bad_requests(trained: nn.Module, digits: datasets.Dataset) -> None:
    with pytest.raises(ValueError, match="accuracy_loss=, steps= or joules="):
        Budget()
    assert str(Budget(steps=1, joules=0.5)) == "1 step and 0.5 J"
    with pytest.raises(ValueError, match=r"steps.*got 0"):
        Budget(steps=0)
    with pytest.raises(ValueError, match=r"accuracy_loss.*got -1"):
        Budget(accuracy_loss=-1)
    with pytest.raises(TypeError, match=r"accuracy_loss.*'1'"):
        Budget(accuracy_loss="1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Budget\(.*got 0.5"):
        ask(trained, digits.train.take(8), 0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"joules.*got 0"):
        Budget(joules=0.0)
    with pytest.raises(ValueError, match="hold_out"):
        ask(trained, digits.train.take(2), Budget(steps=4), hold_out=1.0)
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Mish(), nn.Linear(8, 10)).eval()
    with pytest.raises(ValueError, match="Mish"):
        ask(smooth, digits.train.take(20), Budget(steps=4))
    with pytest.raises(ValueError, match="example"):
        ask(trained, torch.rand(8, 1, 8, 8, dtype=torch.float64), Budget(steps=4))
