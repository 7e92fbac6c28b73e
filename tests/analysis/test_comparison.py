"""The comparison of methods: what it is asked for, and what becomes of a method that cannot."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from rheobase import HALF, ZERO, compare, convert, evaluate, methods
from rheobase.analysis import Latency, accuracy, comparison
from rheobase.network import ConstantCurrent, Poisson
from rheobase.reports.comparison_page import comparison_table
from rheobase.training import datasets


def ask(model: nn.Module, data: datasets.Split, **asked):
    return compare(model, data, data, progress=False, **{"methods": ["max-norm"], "steps": [2], **asked})


def test_names_and_numbers_will_do(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(24)
    found = ask(trained, data, methods="max-norm", starts=["half", 0.25], steps=[4, 2, 4])
    assert [row.initial for row in found.rows] == ["half", "0.25"]
    assert found.steps == (2, 4)
    assert ask(trained, data).rows == ask(trained, data, starts=(ZERO, HALF)).rows


@pytest.mark.parametrize("coding", ["constant", "own"])
def test_a_row_is_what_convert_and_evaluate_give(coding: Any, trained: nn.Module, digits) -> None:
    data, settings = digits.train.take(24), {"opt": {"steps": 2}}  # it is made for the first column
    names = ["max-norm", "opt", "cao"]
    found = ask(trained, data, methods=names, starts=["half"], steps=[4, 2], coding=coding)
    spikes = Poisson(scale=1.5 * data.normalise(data.images).abs().max().item())
    for row, name in zip(found.rows, names, strict=True):
        shown = spikes if (coding, name) == ("own", "cao") else ConstantCurrent()
        snn = convert(trained, name, data, initial="half", coding=shown, **settings.get(name, {}))
        result = evaluate(snn, data, 4, progress=False)
        assert (row.method, row.initial) == (name, "half")
        assert row.accuracy == {2: result.at(2).accuracy, 4: result.at(4).accuracy}
        assert (row.steps, row.spikes) == (4, pytest.approx(result.at(4).spikes))
        assert (row.sop, row.joules) == pytest.approx((result.sop[-1], result.joules[-1]))


def test_a_chain_is_what_convert_makes_of_it(clipped: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(24)
    asked = {"methods": ["opi + signed+ftbc", "gn"], "starts": ["half"], "steps": [2, 4]}
    found = ask(clipped, data, **asked, trained={"opi": clipped}, settings={"ftbc": {"rate": 0.2}})
    then = [methods.get("signed", steps=2), methods.get("ftbc", steps=2, rate=0.2)]
    result = evaluate(convert(clipped, "opi", data, then=then), data, 4, progress=False)
    assert [row.method for row in found.rows] == ["opi + signed + ftbc", "robust-norm + gn"]
    assert found.rows[0].accuracy == {2: result.at(2).accuracy, 4: result.at(4).accuracy}
    assert found.rows[0].timing == result.timing
    assert "opi" in ask(clipped, data, methods=["opi+signed", "max-norm"]).rows[0].method
    untrained = ask(clipped, data, methods=["opi+signed", "max-norm"]).rows[0]
    assert not untrained.steps
    assert "trained={'opi': …}" in untrained.note
    for wrong, told in (("opi+max-norm", "max-norm corrects"), ("opi+singed", "singed")):
        with pytest.raises(ValueError, match=told):
            ask(clipped, data, methods=[wrong], trained={"opi": clipped})


def test_rows_of_a_network_of_their_own_have_its_accuracy(
    trained: nn.Module, clipped: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, seen = digits.train.take(90), list[nn.Module]()
    monkeypatch.setattr(comparison, "accuracy", lambda net, test: seen.append(net) or accuracy(net, test))
    worse = copy.deepcopy(clipped)
    [*worse.parameters()][-2].data[::2] *= -1  # the weights of half of the classes
    asked = {"methods": ["opi", "opi+signed", "max-norm"], "starts": ["half"]}
    found = ask(trained, data, **asked, trained={"opi": worse})
    own, shared = accuracy(worse, data), accuracy(trained, data)
    assert own != shared
    assert [row.ann for row in found.rows] == [own, own, None]
    assert found.ann_accuracy == shared
    assert found.remarks == (f"opi, opi + signed: its own ANN has {own:.2f} %.",)
    assert [id(each) for each in seen] == [id(worse), id(trained)]  # each once
    assert not any(row.ann for row in ask(trained, data, **asked, trained={"opi": trained}).rows)


def test_a_method_that_cannot_convert_says_why(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(24)
    found = ask(trained, data, methods=["max-norm", "tcl"], trained={"tcl": trained}, starts=["half"])
    assert [bool(row.steps) for row in found.rows] == [True, False]
    assert "prepare" in found.rows[1].note
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Mish(), nn.Linear(8, 10)).eval()
    with pytest.raises(ValueError, match=r"(?s)could not convert.*nn\.Mish"):
        ask(smooth, data)


def test_an_answer_after_windows_has_its_true_latency(trained: nn.Module, digits) -> None:
    row = ask(trained, digits.train.take(24), methods=["pascal"], starts=["half"], steps=[2, 4]).rows[0]
    assert (row.timing.windows, row.timing.steps, row.timing.idle) == (3, 2, 1)
    assert set(row.accuracy) == {2, 4}
    for fact in ("after 8 steps", "3 windows of 2", "1 idle"):
        assert fact in row.remark


def test_steps_that_do_not_count_are_told(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(24)
    found = ask(trained, data, methods=["max-norm+srp", "max-norm+cos", "max-norm"], steps=[8, 16])
    srp, cos = (row.timing.pre for row in found.rows[::2][:2])
    assert found.remarks == (
        f"max-norm + srp: the first {srp} steps do not count.",
        f"max-norm + cos: the first {cos} steps do not count.",
    )
    assert min(srp, cos) > 0
    assert set(found.to_pandas()["note"]) == {row.remark for row in found.rows}
    early = replace(found.rows[0], timing=replace(found.rows[0].timing, pre=1))
    assert replace(found, rows=(early, *found.rows[1:2])).remarks == (
        f"max-norm + srp zero: {early.remark}.",
        f"max-norm + srp half: {found.rows[1].remark}.",
    )


def test_a_table_tells_when_images_fell_silent(trained: nn.Module, digits: datasets.Dataset) -> None:
    found = ask(
        trained, digits.train.take(24), methods=["sigma-delta", "max-norm"], steps=[2], starts=["half"]
    )
    assert found.rows[0].silence.largest is None  # two steps are too few
    assert found.silences == (f"sigma-delta, start half: {found.rows[0].silence}.",)
    assert "more than 2 (all)" in found.silences[0]
    assert found.silences[0] in str(found)
    assert found.silences[0] in comparison_table(found).notes


def test_what_a_record_says_of_its_steps_comes_from_its_latency() -> None:
    timing = Latency(steps=8, pre=0, schedule="windows", depth=3, windows=3, lines=1, bits=1)
    row = comparison.Row("a", "half", {8: 99.0}, 8, note="answers once, after 8 steps", timing=timing)
    assert row.remark.startswith("answers once, after 24 steps")


def test_an_interrupted_comparison_keeps_its_rows(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, calls = comparison.evaluate, []

    def pressing(*arguments, **options):
        calls.append(arguments)
        if len(calls) in (2, 3):
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    monkeypatch.setattr(comparison, "evaluate", pressing)
    found = ask(trained, digits.train.take(24))
    assert [row.steps for row in found.rows] == [2, 0]
    assert found.rows[1].note == comparison.STOPPED
    with pytest.raises(KeyboardInterrupt):
        ask(trained, digits.train.take(24))


def test_bad_requests(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(24)
    for steps in ([], [0, 4], "8", [2.5]):
        with pytest.raises(ValueError, match=re.escape(repr(steps))):
            ask(trained, data, steps=steps)
    for asked in ({"trained": {"tlc": trained}}, {"settings": {"tlc": {}}}):
        with pytest.raises(ValueError, match="tlc"):
            ask(trained, data, **asked)
    with pytest.raises(ValueError, match="settings for ftbc, which is not compared"):
        ask(trained, data, settings={"ftbc": {"steps": 2}})
    with pytest.raises(TypeError, match="got 3"):
        ask(trained, data, methods=[3])
    with pytest.raises(ValueError, match=r"'constant' or 'own'.*'poisson'"):
        ask(trained, data, coding="poisson")
    signed = methods.get("signed", base="qcfs")
    for several in (signed, [signed]):
        with pytest.raises(TypeError, match=r"Signed.*methods=\['qcfs\+signed'\].*settings=\{'signed'"):
            ask(trained, data, methods=several)
    with pytest.raises(ValueError, match="from 10 to 10"):
        ask(trained, (data.normalise(data.images), torch.full((24,), 10)))
