"""Diagnosis of the sum code: rounding and clipping, and what is not sent yet."""

import pytest
import torch
from torch import nn

from rheobase import convert, diagnose, simulate
from rheobase.analysis import trace
from rheobase.network import SigmaDelta
from rheobase.training import datasets


def test_only_rounding_and_clipping_remain(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(64)
    snn = convert(trained, "sigma-delta", data, levels=4, sizes=2)
    found = diagnose(trained, snn, data, 30, remedies=False)
    for site in found.sites.values():
        assert site.made_here.power == 0
        shares = site.clipping.share + site.quantisation.share + site.inherited.share
        assert shares == pytest.approx(1)
    assert found.sites["2"].inherited.power == pytest.approx(0, abs=1e-9)
    assert {finding.kind for finding in found.findings} <= {"clipping", "quantisation", "bias"}
    finer = convert(trained, "sigma-delta", data, levels=64, sizes=6)
    better = diagnose(trained, finer, data, 30, remedies=False)
    for name, site in better.sites.items():
        assert site.relative() < found.sites[name].relative() / 4
    short = diagnose(trained, snn, data, 1, remedies=False)
    (unsettled,) = (finding for finding in short.findings if finding.kind == "unsettled")
    assert short.sites[unsettled.site].made_here.power > 0


def test_the_parts_of_one_signed_neuron() -> None:
    """Activations tanh of 0.3, −0.9 and −2 with quanta of ¼ and counts of −3 … 3."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Tanh(), nn.Linear(1, 2)).eval()
    model[0].weight.data.fill_(1.0)
    x = torch.tensor([[0.3], [-0.9], [-2.0]])
    snn = convert(model, "sigma-delta", x, levels=3, sizes=2, per_channel=False)
    neuron = snn.neuron("1")
    assert isinstance(neuron, SigmaDelta)
    neuron.threshold.fill_(0.25)
    a = torch.tanh(x).flatten().double()
    clipped = a.clamp(-0.75, 0.75)
    rounded = (a * 4 + 0.5).floor().clamp(-3, 3) / 4
    site = diagnose(model, snn, x, 10, remedies=False).sites["1"]
    assert site.clipping.bias == pytest.approx((clipped - a).mean().item(), rel=1e-5)
    assert site.quantisation.bias == pytest.approx((rounded - clipped).mean().item(), rel=1e-5)
    assert (site.inherited.power, site.made_here.power) == (0, 0)
    assert site.clipped == pytest.approx(1 - (clipped.square().sum() / a.square().sum()).item(), rel=1e-5)


def test_remedies_are_other_levels(trained: nn.Module, digits: datasets.Dataset) -> None:
    data = digits.train.take(64)
    snn = convert(trained, "sigma-delta", data, levels=2, sizes=2)
    found = diagnose(trained, snn, data, 8, progress=False)
    best = found.remedies[0]
    assert best.gain > 0
    assert "quantisation" in {finding.kind for finding in found.findings}
    assert {r.cures for r in found.remedies if "steps" in r.what} == {("unsettled",)}


def test_traces_show_events_and_counts(trained: nn.Module, digits: datasets.Dataset) -> None:
    snn = convert(trained, "sigma-delta", digits.train.take(64), levels=8, sizes=1)
    x = digits.test.normalise(digits.test.images[:1])
    (shown,) = trace(snn, x, 12)
    run = simulate(snn, x, 12)
    for site in snn.sites:
        events = [len(steps) for steps in shown.sites[site].spikes]
        assert max(events) <= 12
        assert sum(events) <= run.spikes[site].sum()
        for position, counts in shown.sites[site].membranes.items():
            changes = [t for t in range(1, 13) if counts[t] != counts[t - 1]]
            assert changes == shown.sites[site].spikes[position]
