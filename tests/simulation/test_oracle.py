"""Every spike of every profile against a simulator written from the equations."""

import copy

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from oracle import Oracle, grid_inputs, on_grid
from rheobase import HALF, SNN, ZERO, Constant, Simulator, convert
from rheobase.network import IntegrateFire
from rheobase.simulation import Probe

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

INEXACT = {"Inception", "SqueezeExcite"}  # they divide by nine and by the time
STEPS = 9


def network(name: str, *, seed: int = 0, start: Constant = HALF, **options) -> tuple[SNN, Tensor]:
    model = build(name, seed)
    snn = convert(model, "max-norm", inputs(16, seed=5), initial=start, per_channel=bool(seed % 2), **options)
    return on_grid(snn), grid_inputs(inputs(5, seed=seed))


def spikes_of(snn: SNN, x: Tensor, profile: str) -> tuple[dict[str, Tensor], Tensor]:
    seen: dict[str, list[Tensor]] = {site: [] for site in snn.sites}
    probe = Probe(None, lambda site, signal, before: seen[site].append(signal.clone()))
    run = Simulator(snn, x, STEPS, chunk=4, profile=profile, probe=probe).run(x)
    return {site: torch.cat(parts) != 0 for site, parts in seen.items()}, run.logits


def assert_alike(snn: SNN, x: Tensor, profile: str, integers: bool = False) -> None:
    expected, means = Oracle(copy.deepcopy(snn), x, integers).run(STEPS)
    found, logits = spikes_of(snn, x, profile)
    for site in snn.sites:
        assert torch.equal(found[site], expected[site]), site
    assert any(each.any() for each in expected.values())
    torch.testing.assert_close(logits.double(), means, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - INEXACT))
@pytest.mark.parametrize("profile", ["exact", "fast"])
def test_every_family_spike_for_spike(profile: str, name: str, seed: int) -> None:
    assert_alike(*network(name, seed=seed, start=(HALF, ZERO, Constant(0.25), HALF)[seed]), profile)


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("profile", ["exact", "fast"])
def test_every_rule_of_firing(profile: str, strict: bool, reset: str) -> None:
    for name in ("Plain", "SharedReLU", "DenseConcat"):
        snn, x = network(name, start=ZERO, fire_above=strict)
        for neuron in snn.neurons.values():
            assert isinstance(neuron, IntegrateFire)
            neuron.reset = reset
        assert_alike(snn, x, profile)


def chain(seed: int) -> nn.Module:
    """A network whose inner layers all run in integers."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=1 + seed % 2, padding=1), nn.ReLU(),
        nn.AvgPool2d(2), nn.Conv2d(5, 7, 1, bias=bool(seed % 3)), nn.ReLU(), nn.Flatten(),
        nn.Linear(7 * (16 if seed % 2 == 0 else 4), 11), nn.ReLU(), nn.Linear(11, 4),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_integers_spike_for_spike(seed: int, strict: bool, reset: str) -> None:
    snn = convert(chain(seed), "max-norm", inputs(16), initial=(HALF, ZERO)[seed % 2], fire_above=strict)
    first = snn.module.get_submodule("0")
    for parameter in first.parameters():  # its currents are of single precision in every profile
        parameter.data.copy_((parameter * 64).round() / 64)
    for neuron in snn.neurons.values():
        assert isinstance(neuron, IntegrateFire)
        neuron.reset = reset
    snn.neuron(snn.sites[0]).threshold.copy_((snn.neuron(snn.sites[0]).threshold * 16).ceil() / 16)
    assert_alike(snn, grid_inputs(inputs(5, seed=seed)), "int8", integers=True)
