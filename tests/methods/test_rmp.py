"""RMP: the factor, fixed or searched, and networks with biases."""

import dataclasses

import pytest
import torch
from torch import nn

import families
from rheobase import ZERO, convert, methods, simulate
from rheobase.methods.shared import settling
from rheobase.network.codings import ConstantCurrent, Poisson
from rheobase.network.neurons import IntegrateFire
from rheobase.simulation import Probe, Run, Simulator


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


def test_it_has_the_settings_of_its_paper() -> None:
    method = methods.get("rmp")
    assert method.coding == Poisson()
    assert method.initial == ZERO
    assert dataclasses.asdict(method) == {"factor": None, "percentile": None, "steps": 100}


def test_a_bound_of_the_network_is_kept() -> None:
    """ReLU6 stays ReLU6: no threshold may be above the bound."""
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU6(), nn.Linear(8, 3))
    nn.init.constant_(model[0].weight, 5.0)
    snn = convert(model, "rmp", torch.rand(10, 4), factor=1.0, coding=ConstantCurrent())
    neuron = snn.neuron("1")
    assert isinstance(neuron, IntegrateFire)
    assert neuron.threshold.item() == pytest.approx(6.0)


def test_a_site_that_gets_no_current_stays_silent() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    nn.init.constant_(model[0].weight, -1.0)
    nn.init.constant_(model[0].bias, -1.0)
    with pytest.warns(UserWarning, match="never activated"):
        snn = convert(model, "rmp", torch.rand(5, 2), coding=ConstantCurrent())
    x = torch.rand(3, 2)
    torch.testing.assert_close(simulate(snn, x, 5).logits[-1], model[2].bias.expand(3, 2))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("rmp", {}),
        ("rmp", {"percentile": 99.0, "initial": "uniform", "coding": "constant"}),
        ("spike-norm", {"initial": "half"}),
        ("tsc", {"window": 8, "hidden": "switch"}),
    ],
)
def test_all_layers_in_one_run_or_each_in_its_own(method: str, settings: dict, monkeypatch) -> None:
    model, x = families.build("IdentitySkip"), families.inputs(6).clamp(-1, 1)
    at_once = convert(model, method, x, **settings)
    monkeypatch.setattr(settling, "memory_for_all_steps", lambda device: 2**16)
    in_turn = convert(model, method, x, **settings)
    for site in at_once.sites:
        assert torch.equal(at_once.neuron(site).threshold, in_turn.neuron(site).threshold)
        assert type(at_once.neuron(site)) is type(in_turn.neuron(site)) is not settling.StandIn


def test_more_data_than_fit_are_never_held_together(monkeypatch) -> None:
    """A loader may give the images of a whole dataset, one batch after the other."""
    model, x = families.build("IdentitySkip"), families.inputs(40).clamp(-1, 1)
    monkeypatch.setattr(settling, "memory_for_all_steps", lambda device: 2**23)
    held: list[int] = []
    original = settling.gather

    def gather(*given) -> torch.Tensor:
        found = original(*given)
        held.append(len(found))
        return found

    monkeypatch.setattr(settling, "gather", gather)
    found = convert(model, "rmp", [sample[None] for sample in x], factor=0.7)
    assert held[0] == 1 < held[1] < 40
    expected = convert(model, "rmp", x, factor=0.7)
    for site in expected.sites:
        assert torch.equal(found.neuron(site).threshold, expected.neuron(site).threshold)


def test_a_factor_is_searched_on_more_than_the_first_batch(trained: nn.Module, digits) -> None:
    x = digits.train.normalise(digits.train.images[:40])
    settings = {"coding": ConstantCurrent(), "steps": 6}
    whole = convert(trained, "rmp", x, **settings)
    one_by_one = convert(trained, "rmp", [sample[None] for sample in x], **settings)
    for site in whole.sites:
        assert torch.equal(whole.neuron(site).threshold, one_by_one.neuron(site).threshold)


def test_a_device_that_runs_out_of_memory_does_not_cut_the_calibration_data(monkeypatch) -> None:
    model, x = families.build("IdentitySkip"), families.inputs(6).clamp(-1, 1)
    settings = {"factor": 0.7, "percentile": 50.0}
    expected = convert(model, "rmp", x, **settings)
    run_once, cuts = Simulator._run_once, []

    def fail_first(self: Simulator, *arguments) -> Run:
        if not cuts:
            cuts.append(0)
            self.memory = 2 * (self.plan.fixed_bytes + self.plan.moving_bytes)  # half of it is one sample's
            raise torch.OutOfMemoryError
        result = run_once(self, *arguments)
        cuts.append(result.chunk[0])
        return result

    monkeypatch.setattr(Simulator, "_run_once", fail_first)
    found = convert(model, "rmp", x, **settings)
    assert cuts[1] == 1
    for site in expected.sites:
        assert torch.equal(found.neuron(site).threshold, expected.neuron(site).threshold)
