"""The parts of an error are what they are called."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, ZERO, Constant, Gaussian, Uniform, convert, simulate
from rheobase.analysis.diagnosis import diagnose
from rheobase.analysis.diagnosis.observation import capture_original
from rheobase.methods.shared.side_by_side import activations
from rheobase.network.codings import Poisson
from rheobase.network.neurons import IntegrateFire
from rheobase.network.snn import SNN
from rheobase.simulation import Probe

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def count(neuron: IntegrateFire, currents: list[Tensor], v: Tensor) -> Tensor:
    """The number of spikes, step by step."""
    theta, v, spikes = neuron.threshold.double(), v.double(), torch.zeros_like(v, dtype=torch.float64)
    for current in currents:
        v = v + current
        fired = (v > theta if neuron.strict else v >= theta).double()
        v, spikes = v - theta * fired, spikes + fired
    return spikes


def by_hand(model: nn.Sequential, snn: SNN, x: Tensor, T: int) -> dict[str, dict[str, Tensor]]:
    """The parts of every site's error, from a run of both networks."""
    seen: dict[str, list[Tensor]] = {}
    names = [name for site in snn.sites for name in (site, snn.source(site))]
    moving = Probe(
        names[2:] + names[:1], lambda name, signal, _: seen.setdefault(name, []).extend(signal.double())
    )
    simulate(snn, x, T, probe=moving)
    z, found = x, {}
    for number, site in enumerate(snn.sites):
        neuron, dead = snn.neuron(site), snn.neuron(site).dead
        z = model[int(site) - 1](z).detach()
        a, theta = z.clamp(min=0).double(), neuron.threshold.double().where(~dead, 0)
        start = neuron.start(a.shape, number, 0)
        received = seen.get(snn.source(site), [z.double()] * T)
        received = sum(received) / T
        even = [count(neuron, [current] * T, start) * theta / T for current in (z.double(), received)]
        output = sum(seen[site]) * theta / T
        found[site] = {
            "clipping": torch.minimum(a, theta) - a,
            "quantisation": even[0] - torch.minimum(a, theta),
            "inherited": even[1] - even[0],
            "made_here": output - even[1],
            "error": output - a,
        }
        z = a.float()
    return found


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    widths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    T=st.integers(1, 12),
    initial=st.sampled_from([ZERO, HALF, Constant(0.9), Uniform(), Gaussian(0, 1)]),
    per_channel=st.booleans(),
    strict=st.booleans(),
)
def test_every_part_is_what_it_is_called(seed, widths, T, initial, per_channel, strict) -> None:
    """With clipping, as data go beyond the calibration; none lies at a threshold, where ties would decide."""
    torch.manual_seed(seed)
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise([4, *widths, 3])]
    model = nn.Sequential(*[m for pair in layers for m in pair][:-1])
    x = torch.randn(12, 4)
    calibration = 0.93 * x[:4]
    snn = convert(model, "max-norm", calibration, initial=initial, per_channel=per_channel, fire_above=strict)
    result = diagnose(model, snn, x, T, remedies=False)
    for site, parts in by_hand(model, snn, x, T).items():
        for name, part in parts.items():
            found = getattr(result.sites[site], name)
            assert found.bias == pytest.approx(part.mean().item(), abs=1e-6)
            assert found.power == pytest.approx(part.square().mean().item(), abs=1e-6)
            assert found.channels == pytest.approx(part.mean(0).tolist(), abs=1e-6)
            whole = parts["error"].square().mean().item()
            share = (part * parts["error"]).mean().item()
            assert found.share * whole == pytest.approx(share, abs=1e-6)


def directly(model: nn.Module, snn: SNN, site: str, x: Tensor, T: int) -> tuple[Tensor, Tensor]:
    """A site's activation and mean output, the short way: spikes counted, times the threshold."""
    network = capture_original(model, snn, x)
    a = activations(network, x, [site])[site].double()
    theta = snn.neuron(site).threshold
    theta = theta.view(-1, *[1] * (a.dim() - 2)) if theta.dim() else theta
    counts = torch.zeros_like(a)
    simulate(snn, x, T, probe=Probe([site], lambda n, s, _: counts.add_(s.sum(0))))
    alive = theta != torch.finfo(theta.dtype).max
    return a, torch.where(alive, counts * theta.double() / T, 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    model, x, T = build(name), inputs(40), 5
    snn = convert(model, "max-norm", inputs(64, seed=3), initial=HALF, per_channel=True)
    result = diagnose(model, snn, x, T, remedies=False)
    for site in snn.sites:
        a, output = directly(model, snn, site, x, T)
        found = result.sites[site]
        assert found.error.bias == pytest.approx((output - a).mean().item(), rel=1e-6, abs=1e-9)
        assert found.error.power == pytest.approx((output - a).square().mean().item(), rel=1e-6)
        expected = torch.corrcoef(torch.stack([a.flatten(), output.flatten()]))[0, 1].item()
        assert found.correlation == pytest.approx(expected, abs=1e-6)


def test_the_first_site_only_clips_and_counts() -> None:
    model, x = build("Plain"), inputs(32)
    snn = convert(model, "robust-norm", x, percentile=70.0, initial=HALF)
    first = diagnose(model, snn, x, 6, remedies=False).sites[snn.sites[0]]
    assert first.inherited.power == 0
    assert first.made_here.power <= 1e-3 * first.quantisation.power  # a sum that rounds onto the threshold
    a, _ = directly(model, snn, snn.sites[0], x, 6)
    kept = a.clamp(max=snn.neuron(snn.sites[0]).threshold.item())
    assert first.clipping.bias == pytest.approx((kept - a).mean().item(), rel=1e-6)
    assert first.clipped == pytest.approx(1 - (kept.square().sum() / a.square().sum()).item(), rel=1e-6)
    assert first.clipped > 0.05


def test_neurons_that_wait_and_neurons_that_never_fire() -> None:
    model, x, T = build("SharedReLU"), inputs(16), 7
    snn = convert(model, "max-norm", inputs(64, seed=3))
    result = diagnose(model, snn, x, T, remedies=False)
    for site in snn.sites:
        a, _ = directly(model, snn, site, x, T)
        fired = torch.zeros_like(a, dtype=torch.bool)
        for t in range(1, T + 1):
            _, output = directly(model, snn, site, x, t)
            fired = output > 0
            share = ((a > 0) & ~fired).sum() / (a > 0).sum()
            assert result.sites[site].waiting[t - 1] == pytest.approx(share.item(), abs=1e-6)
        silent = ((a > 0).any(0) & ~fired.any(0)).sum() / (a > 0).any(0).sum()
        assert result.sites[site].silent == pytest.approx(silent.item(), abs=1e-6)


def test_behind_random_spikes_the_first_site_inherits_an_error() -> None:
    model, x = nn.Sequential(nn.ReLU(), nn.Linear(4, 3)).eval(), torch.rand(8, 4)
    for coding in (None, Poisson()):
        snn = convert(model, "max-norm", x, coding=coding)
        site = diagnose(model, snn, x, 4, remedies=False).sites["0"]
        a, output = directly(model, snn, "0", x, 4)
        assert site.error.bias == pytest.approx((output - a).mean().item(), abs=1e-6)
        assert (site.inherited.power > 0) == (coding is not None)
