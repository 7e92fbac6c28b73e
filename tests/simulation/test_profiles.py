"""Profiles: another arithmetic gives the same network."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from families import FAMILIES, converted, inputs
from rheobase import HALF, convert, simulate
from rheobase.simulation import Simulator
from rheobase.simulation.device import DEVICES
from rheobase.simulation.half_precision import HalfConnection
from rheobase.simulation.profiles import Integer


def test_integers_keep_weights_to_half_a_level() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    weight[2] = 0
    profile = Integer()
    gain = profile.gain(weight, torch.ones(6), weight.flatten(1).abs().sum(1))
    whole = profile.weight(weight, gain)
    assert whole.dtype == torch.int8
    back = whole.float() / gain.view(-1, 1, 1, 1)
    assert ((back - weight).abs() <= 0.5 / gain.view(-1, 1, 1, 1) + 1e-6).all()
    assert whole.abs().flatten(1).amax(1).tolist() == [127, 127, 0, 127, 127, 127]


@pytest.mark.parametrize("factor", [0.0, 1e-9, 1e-6])
def test_integers_of_channels_with_next_to_no_weights(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        model[2].weight *= factor
        model[2].bias.copy_(torch.linspace(-5, 2.6, 8))
    snn = convert(model, "max-norm", inputs(16), initial=HALF)
    exact, whole = (simulate(snn, inputs(3), 40, profile=profile) for profile in ("exact", "int8"))
    torch.testing.assert_close(whole.logits, exact.logits, rtol=0, atol=1e-3)
    assert exact.logits.any()


def test_a_default_type_of_numbers_changes_no_integers() -> None:
    snn, x = converted("Plain"), inputs(2)
    expected = simulate(snn, x, 4, profile="int8")
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = Simulator(snn, x, 4, profile="int8").run(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.logits, expected.logits)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'fp4'.*exact, fast, int8"):
        simulate(converted("Plain"), inputs(2), 4, profile="fp4")


def chain() -> tuple[nn.Sequential, torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    return nn.Sequential(*layers).eval(), torch.rand(16, 6)


def test_integers_do_not_overflow_in_long_runs() -> None:
    """A channel of tiny weights and a bias of −1 goes down for thousands of steps."""
    model, x = chain()
    model[2].weight.data[0] *= 1e-6
    model[2].bias.data[0] = -1
    snn = convert(model, "max-norm", x)
    exact, integers = (simulate(snn, x, 3000, at=[3000], profile=p).logits for p in ("exact", "int8"))
    assert (exact - integers).norm() < 0.01 * exact.norm()


class Beside(nn.Module):
    """Spikes and an analog current meet in one neuron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.beside = (nn.Linear(1, 1, bias=False) for _ in range(3))
        self.last = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.second(torch.relu(self.first(x))) + self.beside(x)))


@pytest.mark.parametrize("units", [100.6, 100.4, -100.4, -100.6])
def test_analog_currents_are_rounded_to_the_nearest_unit(units: float) -> None:
    """A weight of one is 127 units and a threshold of two is 254."""
    model, x = Beside().eval(), torch.ones(1, 1)
    for layer, weight in ((model.first, 1.0), (model.second, 1.0), (model.beside, units / 127)):
        nn.init.constant_(layer.weight, weight)
    snn = convert(model, "max-norm", x)
    snn.neuron(snn.sites[1]).threshold.fill_(2.0)
    spikes = simulate(snn, x, 1270, profile="int8").spikes[snn.sites[1]]
    assert spikes.sum() == (127 + round(units)) * 5


@pytest.mark.filterwarnings("ignore:site .* never activated")
def test_a_threshold_below_two_units_stays_in_floats() -> None:
    """Rounded to zero, it would let its channel fire at every step."""
    model, x = chain()
    snn = convert(model, "max-norm", x, per_channel=True)
    weight = snn.module.get_submodule("2").weight
    snn.neuron("3").threshold[1] = weight[1].abs().max() / 400
    exact, integers = (simulate(snn, x, 32, profile=p) for p in ("exact", "int8"))
    assert all(torch.equal(exact.spikes[site], integers.spikes[site]) for site in snn.sites)
    assert any("2" in note for note in integers.notes)


@pytest.mark.parametrize("profile", ["fast", "int8"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_in_double_precision_runs_in_every_profile(name: str, profile: str) -> None:
    snn, x = converted(name), inputs(3)
    single, double = (
        simulate(snn, x, 6, profile=profile),
        simulate(snn.double(), x.double(), 6, profile=profile),
    )
    torch.testing.assert_close(single.logits.double(), double.logits, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", ["gn", "srp", "parallel"])
def test_neurons_for_few_steps_get_currents_in_half_precision(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    snn, x = convert(FAMILIES["SharedReLU"]().eval(), "max-norm", inputs(16), then=[method]), inputs(4)
    exact = simulate(snn, x, 4 + snn.delay)
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], halves=True))
    half = Simulator(snn, x, 4 + snn.delay, profile="fast")
    layers = [step.operation for step in half.plan.steps if isinstance(step.operation, HalfConnection)]
    assert layers
    assert all(p.dtype == torch.bfloat16 for layer in layers for p in layer.parameters())
    assert not half.notes
    near = half.run(x).logits
    assert near.dtype == torch.float32
    assert not torch.equal(near, exact.logits)
    torch.testing.assert_close(near, exact.logits, rtol=0, atol=0.2 * exact.logits.abs().max().item())


def test_long_sums_stay_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], halves=True))
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU())
    snn = convert(model, "max-norm", inputs(16), then=["gn"])
    plan = Simulator(snn, inputs(2), 4, profile="fast").plan
    assert not any(isinstance(step.operation, HalfConnection) for step in plan.steps)
