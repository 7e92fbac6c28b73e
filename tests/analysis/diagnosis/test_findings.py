"""Findings: what costs accuracy, and what helps."""

import copy

import pytest
import torch
from torch import nn

from families import build, inputs
from rheobase import HALF, convert, simulate
from rheobase.analysis.diagnosis import diagnose, remedies
from rheobase.analysis.diagnosis.findings import find
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def test_dead_channels_are_named() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    with torch.no_grad():
        model[0].weight[1:3] = 0
        model[0].bias[1:3] = torch.tensor([-1.0, -1.0])
        model[0].weight[3] = 0
        model[0].weight[3, 0] = 1
        model[0].bias[3] = 0.0
    dark = inputs(8)
    dark[:, 0] = -dark[:, 0].abs()
    snn = convert(model, "max-norm", dark, per_channel=True)
    result = diagnose(model, snn, inputs(8), 8, remedies=False)
    assert result.sites["1"].dead == 0.75
    found = next(f for f in result.findings if f.kind == "dead")
    assert "75%" in str(found)
    assert "calibrate on more data" in str(found)


def test_findings_name_what_helps(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(96)
    snn = convert(trained, "max-norm", data)
    before = copy.deepcopy(trained.state_dict())
    result = diagnose(trained, snn, data, 6)
    assert all(torch.equal(v, trained.state_dict()[k]) for k, v in before.items())
    assert result.measure == "accuracy"
    assert result.snn < result.ann - 20
    severities = [finding.severity for finding in result.findings]
    assert severities == sorted(severities, reverse=True)
    waiting = next(f for f in result.findings if f.kind == "waiting")
    assert waiting.remedy is not None
    assert waiting.remedy.gain == max(r.gain for r in result.remedies) > 20
    half = next(r for r in result.remedies if r.what == "start half instead of zero")
    assert half.gain > 20
    gained = simulate(convert(trained, "max-norm", data, initial=HALF), data.normalise(data.images), 6)
    right = (gained.logits[-1].argmax(-1) == data.labels).double().mean().item() * 100
    assert half.after == pytest.approx(right)
    text = str(result)
    assert "1. site" in text
    assert all(site in text for site in snn.sites)
    assert any(r.what == "robust-norm with percentile 99 instead of max-norm" for r in result.remedies)
    assert any(r.what == "a threshold for each channel" for r in result.remedies)
    assert any("steps" in r.what and r.steps == 24 for r in result.remedies)


def test_a_bias_that_rounds_to_zero_is_not_shown_below_zero() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 2))
    nn.init.ones_(model[0].weight)
    snn = convert(model, "max-norm", torch.ones(1, 1))
    result = diagnose(model, snn, torch.tensor([[0.7502]]), 4, remedies=False)
    assert -0.005 < result.sites["1"].relative_bias < 0
    assert " +0%" in str(result)
    assert "-0%" not in str(result)


def test_more_steps_must_gain_clearly_more_than_what_is_free() -> None:
    kinds = ("clipping", "quantisation", "unevenness", "waiting", "bias")
    x = inputs(8)
    result = diagnose(build("Plain"), convert(build("Plain"), "max-norm", x), x, 4, remedies=False)
    free = remedies.Remedy("a half start", kinds, 80.0, 90.0, 4)
    for after, expected in ((90.5, "a half start"), (92.0, "4 times as many steps")):
        longer = remedies.Remedy("4 times as many steps", kinds, 80.0, after, 16)
        found = find(list(result.sites.values()), [longer, free], 4)
        assert {f.remedy.what for f in found if f.remedy} == {expected}
