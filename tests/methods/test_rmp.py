"""RMP: the factor, fixed or searched, and networks with biases."""

import pytest
import torch
from torch import nn

import families
from rheobase import convert, simulate
from rheobase.network.codings import ConstantCurrent, Poisson
from rheobase.simulation import Probe


def largest_currents(snn, x: torch.Tensor, steps: int) -> dict[str, float]:
    """The largest current of each site in a run, without the bits of the folding."""
    largest: dict[str, float] = {}
    sources = {snn.source(site): site for site in snn.sites}

    def see(name: str, current: torch.Tensor, _: int) -> None:
        largest[sources[name]] = max(largest.get(sources[name], 0.0), current.max().item())

    simulate(snn, x, steps, probe=Probe(list(sources), see))
    return largest


@pytest.mark.parametrize("factor", [0.5, 0.7, 1.0])
def test_thresholds_are_the_factor_times_the_largest_current(
    trained: nn.Module, digits, factor: float
) -> None:
    """Measured with the factor upstream: the finished network has just these currents."""
    x = digits.train.normalise(digits.train.images[:20])
    snn = convert(trained, "rmp", x, factor=factor, coding=Poisson(scale=2), steps=12)
    for site, largest in largest_currents(snn, x, 12).items():
        assert snn.neuron(site).threshold.item() == pytest.approx(factor * largest, rel=1e-5)
        assert snn.neuron(site).reset == "subtract"


def test_a_percentile_is_below_the_maximum(trained: nn.Module, digits) -> None:
    x = digits.train.normalise(digits.train.images[:20])
    settings = {"coding": ConstantCurrent(), "steps": 8, "factor": 1.0}
    largest = convert(trained, "rmp", x, **settings)
    high = convert(trained, "rmp", x, percentile=99.0, **settings)
    top = convert(trained, "rmp", x, percentile=100.0, **settings)
    first = high.sites[0]
    current = nn.Sequential(*trained[:2])(x)
    expected = torch.quantile(current[current > 0].double(), 0.99).item()
    # The current is constant, so 8 steps hold each value 8 times; interpolation sees that, by less than 1 %.
    assert high.neuron(first).threshold.item() == pytest.approx(expected, rel=0.01)
    for site in largest.sites:
        assert high.neuron(site).threshold < largest.neuron(site).threshold
    assert top.neuron(first).threshold.item() == pytest.approx(
        largest.neuron(first).threshold.item(), rel=1 / 500
    )


def test_a_searched_factor_agrees_best_with_the_ordinary_network(trained: nn.Module, digits) -> None:
    x = digits.train.normalise(digits.train.images[:40])
    settings = {"coding": ConstantCurrent(), "steps": 6}
    expected = trained(x)

    def score(snn) -> tuple[int, float]:
        output = simulate(snn, x, 6, at=[6]).logits[0]
        same = (output.argmax(1) == expected.argmax(1)).sum().item()
        return same, -(output - expected).double().square().sum().item()

    found = convert(trained, "rmp", x, factor=None, **settings)
    scores = {
        f: score(convert(trained, "rmp", x, factor=f, **settings))
        for f in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    }
    best = max(scores, key=lambda f: scores[f])
    chosen = convert(trained, "rmp", x, factor=best, **settings)
    assert (found.provenance.found, chosen.provenance.found) == ({"factor": best}, {})
    for site in found.sites:
        assert torch.equal(found.neuron(site).threshold, chosen.neuron(site).threshold)
    assert len(set(scores.values())) > 1


@pytest.mark.parametrize("name", sorted(families.FAMILIES))
def test_the_rate_twin_of_any_network_with_biases_answers_alike(name: str) -> None:
    model, x = families.build(name), families.inputs(48)
    twin = convert(model, "rmp", x, factor=1.0, coding=ConstantCurrent(), steps=30).limit(x)
    assert (twin.argmax(1) == model(x).argmax(1)).double().mean() >= 0.9
