"""Advice: a budget is kept or said to be out of reach, and nothing is measured on what was fitted."""

import copy
import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from rheobase import convert, evaluate, methods
from rheobase.analysis import advice as advising
from rheobase.analysis.advice import advise
from rheobase.analysis.energy import CMOS_45NM
from rheobase.analysis.trials import Advice, Budget
from rheobase.training import datasets

CHEAP = ["max-norm", "opi", "opt", "robust-norm", "tcl"]


@pytest.fixture
def quick_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some quick methods, so that the whole plan runs in seconds."""
    monkeypatch.setattr(methods, "names", lambda: CHEAP)


def ask(model: nn.Module, data, budget: Budget, **options) -> Advice:
    return advise(model, data, budget, progress=False, **options)


def key(advice: Advice) -> list[tuple[str, int, float, bool]]:
    return [(t.name, t.steps, t.accuracy, t.met) for t in advice.trials]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """The inputs that conversions are fitted to, and those that they are measured on."""
    fitted: list[Tensor] = []
    measured: list[tuple[Tensor, Tensor]] = []

    def converting(model, method, calibration, **options):
        fitted.append(calibration)
        return convert(model, method, calibration, **options)

    def evaluating(snn, data, *args, **options):
        measured.append(data)
        return evaluate(snn, data, *args, **options)

    monkeypatch.setattr(advising, "convert", converting)
    monkeypatch.setattr(advising, "evaluate", evaluating)
    return fitted, measured


@pytest.mark.usefixtures("quick_methods")
@pytest.mark.parametrize(
    "budget",
    [
        Budget(accuracy_loss=1.0), Budget(steps=1), Budget(joules=1.5e-8), Budget(accuracy_loss=2.0, steps=8),
        Budget(accuracy_loss=0.0, steps=1),
    ],
    ids=str,
)  # fmt: skip
def test_the_choice_is_that_of_brute_force(budget: Budget, trained: nn.Module, digits, parts) -> None:
    before = copy.deepcopy(trained.state_dict())
    advice = ask(trained, digits.train.take(300), budget)
    assert all(torch.equal(v, trained.state_dict()[k]) for k, v in before.items())
    fit, (x, y) = parts[0][0], parts[1][0]
    ann = 100 * (trained(x).argmax(1) == y).double().mean().item()
    assert (advice.measure, advice.ann) == ("accuracy", pytest.approx(ann))
    loss, joules = budget.accuracy_loss, budget.joules or float("inf")
    found = []  # within the budget or not, what counts then, and what that conversion gives
    for name, start in product(("max-norm", "robust-norm"), ("zero", "half")):
        result = evaluate(
            convert(trained, name, fit, initial=start), (x, y), budget.steps or 64, progress=False
        )
        for t in range(1, result.steps + 1):
            accuracy, spent = result.accuracy[t - 1], result.joules[t - 1]
            met = spent <= joules and (loss is None or accuracy >= ann - loss)
            rank = (t, -accuracy) if met and loss is not None else (-accuracy, t)
            found.append((not met, *rank))
    best = min(found)
    chosen = advice.chosen
    rank = (
        (chosen.steps, -chosen.accuracy)
        if chosen.met and loss is not None
        else (-chosen.accuracy, chosen.steps)
    )
    assert advice.met == chosen.met == (not best[0])
    first_enough = loss is not None and budget.steps is not None and advice.met
    assert (not chosen.met, *rank) <= best or first_enough  # other settings may be better still
    again = evaluate(advice.snn, (x, y), chosen.steps, progress=False)
    assert (again.accuracy[-1], again.joules[-1]) == pytest.approx((chosen.accuracy, chosen.joules))
    assert chosen.joules <= joules
    assert chosen.steps <= (budget.steps or 64)


@pytest.mark.usefixtures("quick_methods")
def test_nothing_is_tried_that_cannot_be_better(trained, clipped, digits: datasets.Dataset) -> None:
    data = digits.train.take(200)
    first = ask(clipped, data, Budget(accuracy_loss=2.0, steps=8))
    assert [t.method.name for t in first.trials] == ["opi"]  # its thresholds need no data
    proven = ask(trained, data, Budget(joules=1e-12), convention=CMOS_45NM)
    assert not proven.met
    assert len([t for t in proven.trials if not t.note]) == 1  # the first layer alone costs more
    every = ask(trained, data, Budget(steps=1)).trials
    assert [t.method.name for t in every if t.note] == ["opi", "tcl"]
    tried = [(t.method, str(t.initial)) for t in every]
    assert (methods.get("robust-norm", percentile=99.0), "half") in tried
    assert (methods.get("opt", steps=1), "zero") in tried


def test_the_default_of_convert_is_tried_before_all_that_measure(
    trained: nn.Module, digits: datasets.Dataset
) -> None:
    advice = ask(trained, digits.train.take(100), Budget(accuracy_loss=50, steps=8))
    tried = [(t.method.name, str(t.initial)) for t in advice.trials if not t.note]
    assert tried == [("cao", "zero"), ("robust-norm", "half")]  # cao needs no data


@pytest.mark.usefixtures("quick_methods")
def test_a_budget_of_steps_alone_praises_nothing(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(100)
    advice = ask(trained, data, Budget(steps=1))
    assert advice.met
    assert not any(t.remark for t in advice.trials)
    assert " met" not in str(advice)
    lost = advice.ann - advice.chosen.accuracy
    assert f"{lost:.2f} points below the ANN" in advice.verdict
    enough = ask(trained, data, Budget(accuracy_loss=90, steps=1)).chosen
    assert (enough.met, enough.remark) == (True, "met")


@pytest.mark.usefixtures("quick_methods")
def test_what_is_fitted_is_not_measured(trained: nn.Module, digits: datasets.Dataset, parts) -> None:
    fitted, measured = parts
    x = digits.train.normalise(digits.train.images[:60])
    advice, again = (ask(trained, x, Budget(steps=3), hold_out=0.25) for _ in range(2))
    assert key(again) == key(advice)
    assert (advice.measure, advice.ann) == ("agreement", 100.0)
    assert {len(f) for f in fitted} == {45}
    assert {len(m) for m, _ in measured} == {15}
    rows = {tuple(row.flatten().tolist()) for row in fitted[0]}
    assert not rows & {tuple(row.flatten().tolist()) for row in measured[0][0]}
    ask(trained, x, Budget(steps=3), hold_out=0.25, seed=1)
    assert not torch.equal(fitted[-1], fitted[0])


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


@pytest.mark.usefixtures("quick_methods")
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


def test_bad_requests(trained: nn.Module, digits: datasets.Dataset) -> None:
    with pytest.raises(ValueError, match="accuracy_loss=, steps= or joules="):
        Budget()
    with pytest.raises(ValueError, match=r"lines=1 alone.*accuracy_loss=, steps= or joules="):
        Budget(lines=1)
    assert str(Budget(steps=1, joules=0.5)) == "1 step and 0.5 J"
    with pytest.raises(ValueError, match=r"steps.*got 0"):
        Budget(steps=0)
    with pytest.raises(ValueError, match=r"accuracy_loss.*got -1"):
        Budget(accuracy_loss=-1)
    with pytest.raises(TypeError, match=r"accuracy_loss.*'1'"):
        Budget(accuracy_loss="1")  # type: ignore[arg-type]
    for given, described in ((0.5, "float"), ((torch.rand(2, 3), torch.zeros(2)), "tuple")):
        with pytest.raises(TypeError, match=rf"Budget\(.*got a {described};.*held out") as refused:
            ask(trained, digits.train.take(8), given)  # type: ignore[arg-type]
        assert "tensor" not in str(refused.value)
    with pytest.raises(ValueError, match=r"joules.*got 0"):
        Budget(joules=0.0)
    with pytest.raises(ValueError, match="hold_out"):
        ask(trained, digits.train.take(2), Budget(steps=4), hold_out=1.0)
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Mish(), nn.Linear(8, 10)).eval()
    with pytest.raises(ValueError, match="Mish"):
        ask(smooth, digits.train.take(20), Budget(steps=4))
    with pytest.raises(ValueError, match="example"):
        ask(trained, torch.rand(8, 1, 8, 8, dtype=torch.float64), Budget(steps=4))


def test_lines_and_true_latency_limit_the_choice(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["few-spikes", "max-norm", "sigma-delta"])
    data = digits.train.take(300)
    free = ask(trained, data, Budget(accuracy_loss=0.7))
    assert (free.met, free.chosen.method.name) == (True, "sigma-delta")
    tried = {t.method.levels for t in free.trials if t.method.name == "sigma-delta"}  # type: ignore[attr-defined]
    assert tried > {32}
    binary = ask(trained, data, Budget(accuracy_loss=0.7, lines=1))
    assert binary.chosen.method.name != "sigma-delta"
    assert binary.chosen.latency >= free.chosen.latency
    refused = [t for t in binary.trials if t.method.name == "sigma-delta"]
    assert all("10 lines" in t.note and "1 is allowed" in t.note for t in refused)
    assert "1 line per neuron" in str(binary.budget)
    waiting = [t for t in ask(trained, data, Budget(steps=48)).trials if t.method.name == "few-spikes"]
    assert {t.latency for t in waiting if not t.note} == {3 * t.steps for t in waiting if not t.note}
    assert f"{waiting[0].steps} ({waiting[0].latency})" in str(waiting[0])
    short = [t for t in ask(trained, data, Budget(steps=2)).trials if t.method.name == "few-spikes"]
    assert short
    assert all("3 steps" in t.note and "2 are allowed" in t.note for t in short)
    with pytest.raises(ValueError, match=r"lines .* 0"):
        Budget(steps=4, lines=0)


def test_the_best_are_corrected_twice(trained: nn.Module, digits, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["ftbc", "max-norm", "signed", "srp"]
    monkeypatch.setattr(methods, "names", lambda: names)
    advice = ask(trained, digits.train.take(64), Budget(steps=1, lines=2))
    titles = [t.method.title for t in advice.trials]
    first = [f"max-norm + {name}" for name in ("ftbc", "signed", "srp")]
    assert titles.index("max-norm") < min(titles.index(title) for title in first)
    assert "max-norm + signed + ftbc" in titles
    assert not any("ftbc + signed" in title for title in titles)  # biases come last
    notes = {t.method.title: t.note for t in advice.trials}
    assert "5 steps" in notes["max-norm + srp"]


def test_chains_meet_a_budget_in_latency_lines_and_accuracy(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["cos", "gn", "max-norm", "parallel"])
    data = digits.train.take(300)
    alone = max(
        t.accuracy for t in ask(trained, data, Budget(steps=1, lines=1)).trials if t.method.name == "max-norm"
    )
    found = ask(trained, data, Budget(accuracy_loss=100 - alone - 1.5, steps=1, lines=2))
    assert (found.met, found.chosen.method.title, found.chosen.latency) == (True, "max-norm + gn", 1)
    assert found.snn.neuron(found.snn.sites[0]).lines == 2
    assert found.chosen.accuracy > alone
    assert any("4 lines" in t.note for t in found.trials if t.method.name == "gn")
    waiting = [t.note for t in found.trials if t.method.name in ("cos", "parallel")]
    assert waiting
    assert all(re.search(r"\d+ steps.* 1 ", note) for note in waiting)


@pytest.fixture
def mlp() -> tuple[nn.Module, Tensor]:
    """A random network, whose answers no conversion gives for all of some random inputs."""
    torch.manual_seed(0)
    layers = nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 200)
    return nn.Sequential(*layers).eval(), torch.randn(160, 16)


def members_of(advice: Advice, title: str) -> set[int]:
    """The numbers of members that a method was measured with, at the bottom of a chain."""
    found = [t.method for t in advice.trials if t.method.title == title and not t.note]
    bottom: list[Any] = [m.base if isinstance(m, methods.Correction) else m for m in found]
    return {method.members for method in bottom}


def test_methods_with_too_many_lines_are_tried_with_fewer(
    mlp: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["dcgs", "ftbc", "hmt", "max-norm"])
    two = ask(*mlp, Budget(steps=2, lines=2))
    assert members_of(two, "hmt") == members_of(two, "hmt + ftbc") == {2}
    assert members_of(two, "dcgs") == set()  # it would need 4 lines
    assert two.chosen.method.title in ("hmt", "hmt + ftbc")
    assert two.chosen.lines == 2
    assert "after 2 steps with 2 lines per neuron" in two.verdict
    four = ask(*mlp, Budget(steps=2, lines=4))
    assert (members_of(four, "dcgs"), members_of(four, "hmt")) == ({2}, {2, 4})


def test_methods_that_wait_are_aimed_at_what_the_latency_allows(
    mlp: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["dcgs", "few-spikes", "ltb", "max-norm", "parallel", "pascal", "srp"]
    monkeypatch.setattr(methods, "names", lambda: names)
    advice = ask(*mlp, Budget(steps=9, lines=1))
    assert not any("needs" in t.note for t in advice.trials)
    assert all(t.latency <= 9 for t in advice.trials)
    aims = {name: {t.method.steps for t in advice.trials if t.method.name == name} for name in names[:3]}  # type: ignore[attr-defined]
    assert aims == {"dcgs": {8}, "few-spikes": {4}, "ltb": {9}}  # a delay, two layers that wait, neither
    for name, most in (("parallel", 4), ("pascal", 3)):
        chains = [t.method for t in advice.trials if t.method.name == name]
        assert {m.steps for m in chains} == {most}  # type: ignore[attr-defined]
    rehearsed = [t.method.base for t in advice.trials if t.method.title == "ltb + srp"]  # type: ignore[attr-defined]
    assert [m.steps for m in rehearsed] == [5]
    points = advice.plot(Figure().add_subplot()).collections
    drawn, chosen = (group.get_offsets()[:, 0].tolist() for group in points)
    measured = [t for t in advice.trials if not t.note]
    assert drawn == [t.latency for t in measured] != [t.steps for t in measured]
    assert chosen == [advice.chosen.latency]


def test_trials_show_their_lines(mlp: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["hmt", "max-norm"])
    advice = ask(*mlp, Budget(steps=2))
    shown = advice._shown()
    column = shown.header.index("lines")
    assert [row[column] for row in shown.rows] == [str(t.lines) for t in advice.trials]
    assert {(t.method.name, t.lines) for t in advice.trials} >= {("hmt", 4), ("max-norm", 1)}
    assert all(f" {t.lines} line{'s' if t.lines > 1 else ''} " in str(t) for t in advice.trials)


def test_a_shorter_latency_is_looked_for_once_one_is_enough(
    mlp: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["dcgs", "few-spikes"])
    advice = ask(*mlp, Budget(accuracy_loss=5))
    assert advice.met
    first, second = advice.trials[:2]
    assert not second.note
    assert second.latency < first.latency


def test_names_and_records_tell_all_settings(
    mlp: tuple[nn.Module, Tensor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(methods, "names", lambda: ["ftbc", "robust-norm", "signed"])
    advice = ask(*mlp, Budget(steps=2, lines=2))
    names = [t.name for t in advice.trials]
    assert len(set(names)) == len(names)
    usual = "robust-norm percentile=99.0 + signed steps=2 + ftbc steps=2, start half"
    assert usual in names
    assert usual.replace("signed", "signed rule=annealed") in names
    advice.write(tmp_path / "advice.json")
    kept = json.loads((tmp_path / "advice.json").read_text())["trials"][names.index(usual)]
    signed = kept["settings"]["base"]
    assert (kept["method"], signed["method"], signed["base"]["method"]) == ("ftbc", "signed", "robust-norm")
    assert signed["base"]["percentile"] == 99.0
    assert kept["lines"] == 2
