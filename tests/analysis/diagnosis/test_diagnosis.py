"""Diagnosis: what it measures, what it refuses, and what Ctrl-C leaves."""

import copy
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from families import build, inputs, limit_memory
from rheobase import HALF, Uniform, convert, evaluate, simulate
from rheobase.analysis.diagnosis import diagnose, remedies
from rheobase.network.codings import Poisson
from rheobase.reports import run_record
from rheobase.reports.run_record import RunRecord
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def test_a_batch_that_is_run_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("IdentitySkip"), inputs(7)
    snn = convert(model, "max-norm", x, initial=Uniform(0.0, 1.0), coding=Poisson(scale=5.0))
    whole = diagnose(model, snn, x, 5, remedies=False)
    assert simulate(snn, x, 5).chunk[0] == 7
    limit_memory(monkeypatch, snn, x, samples=3, steps=5)
    assert simulate(copy.deepcopy(snn), x, 5).chunk[0] < 7  # the network itself keeps what it prepared
    assert diagnose(model, snn, x, 5, remedies=False).sites == whole.sites


def test_an_interrupted_diagnosis_keeps_what_is_done(
    trained: nn.Module, digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = digits.train.take(48)
    snn = convert(trained, "max-norm", data)
    whole = diagnose(trained, snn, data, 4, progress=False)
    assert whole.untried == []
    for done in (0, 2):
        calls: list[Any] = []

        def press(*arguments: Any, calls: list[Any] = calls, done: int = done, **options: Any) -> Any:
            calls.append(arguments)
            if len(calls) > done:
                raise KeyboardInterrupt
            return evaluate(*arguments, **options)

        monkeypatch.setattr(remedies, "evaluate", press)
        part = diagnose(trained, snn, data, 4, progress=False)
        assert len(part.remedies) == done
        assert {r.what for r in part.remedies} | set(part.untried) == {r.what for r in whole.remedies}
        assert part.sites == whole.sites
        assert [f.kind for f in part.findings] == [f.kind for f in whole.findings]
        assert all("stopped" in f.advice for f in part.findings if f.kind != "dead")
        assert part.untried[0] in str(part)
    monkeypatch.setattr(run_record, "sweep_starts", lambda *_, **__: pytest.fail("went on after Ctrl-C"))
    kept = run_record.record_diagnosis(trained, snn, data, 4, title="t", progress=False)
    kept.write(tmp_path / "part.json")
    assert RunRecord.read(tmp_path / "part.json").diagnosis == kept.diagnosis


def test_without_labels_agreement_counts(trained: nn.Module, digits: datasets.Dataset) -> None:
    x = digits.train.normalise(digits.train.images[:48])
    snn = convert(trained, "max-norm", x, initial=HALF)
    result = diagnose(trained, snn, x, 4, remedies=False)
    assert (result.measure, result.ann) == ("agreement", 100.0)
    answers = simulate(snn, x, 4).logits[-1].argmax(-1)
    assert result.snn == pytest.approx(100 * (answers == trained(x).argmax(-1)).double().mean().item())


def test_another_model_is_refused(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(8)
    snn = convert(trained, "max-norm", data)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    with pytest.raises(ValueError, match=r"\['2'\].*'2', '5', '9'"):
        diagnose(other, snn, data, 4)
    wider = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)).eval()
    narrow = convert(wider, "max-norm", data)
    wider[1], wider[3] = nn.Linear(64, 9), nn.Linear(9, 10)
    with pytest.raises(ValueError, match=r"1 has weights.*\(9, 64\).*\(8, 64\)"):
        diagnose(wider, narrow, data, 4)
    with pytest.raises(TypeError, match="expected a spiking network"):
        diagnose(snn, trained, data, 4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"integer.*2\.5"):
        diagnose(trained, snn, data, 2.5)  # type: ignore[arg-type]


def test_steps_that_do_not_count_are_no_error(clipped, digits) -> None:
    data = digits.train.take(64)
    snn = convert(clipped, "dcgs", data, steps=4)
    assert snn.delay == 1  # a step in which nothing is sent
    found = diagnose(clipped, snn, data, 5, remedies=False).sites[snn.sites[0]]
    assert found.relative("quantisation") < 0.1
    snn = convert(clipped, "ltb", data, steps=8)
    assert snn.delay > 1
    found = diagnose(clipped, snn, data, 8, remedies=False).sites[snn.sites[0]]
    assert found.relative("made_here") < 1e-6  # its current is constant
    assert found.waiting[snn.delay - 1] == 1.0  # a spike before the steps that count is none
    assert found.waiting[-1] < 1.0


def test_findings_tell_the_steps_that_count(clipped, digits) -> None:
    data = digits.train.take(32)
    snn = convert(clipped, "opi", data, then=["srp"])
    found = diagnose(clipped, snn, data, 4 + 1)
    assert "count to 1" in str(found)
    assert "without a spike after 1 step" in str(found)
    tried = {remedy.what: remedy.steps for remedy in found.remedies}
    assert tried["2 times as many steps"] == 4 + 2
    assert "robust-norm instead of opi + srp" in tried
