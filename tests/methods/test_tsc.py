"""Temporal-switch coding: RMP neurons behind it, or switches all the way."""

import pytest
import torch
from torch import Tensor, nn

import families
from rheobase import HALF, ZERO, convert, simulate
from rheobase.network.codings import ConstantCurrent, TemporalSwitch
from rheobase.network.neurons import IntegrateFire, Switch


def switched(p: Tensor, N: int) -> Tensor:
    """The definition: on from step 1 up to, and without, step p* = floor(p·(N − 1)) + 1."""
    p_star = torch.floor(p.clamp(0, 1) * (N - 1)) + 1
    t = torch.arange(1, N + 1).view(-1, *[1] * p.dim())
    return (t < p_star).to(p)


def test_a_switch_gathers_a_window_and_fires_a_pair() -> None:
    N, threshold = 10, torch.tensor(2.0, dtype=torch.float64)
    neuron = Switch(threshold, N)
    current = torch.randn(N, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 1
    found = neuron.advance(current, neuron.start(torch.Size((4, 6)), 0, 0), N)
    assert torch.equal(found, 2 * switched(current.mean(0) / 2, N))
    spikes = torch.cat([found[:1], found.diff(dim=0)])
    assert ((spikes != 0).sum(0) <= 2).all()
    constant = neuron.advance(current[0], torch.zeros(4, 6, dtype=torch.float64), N)
    assert torch.equal(constant, 2 * switched(current[0] / 2 + 1e-15, N))


def test_the_mean_of_a_switch_is_its_rate_but_for_one_step() -> None:
    z = torch.linspace(-1, 4, 101, dtype=torch.float64)[None]
    for N in (8, 64):
        neuron = Switch(torch.tensor(3.0, dtype=torch.float64), N)
        mean = neuron.advance(z, torch.zeros_like(z), N).mean(0)
        short = neuron(z) - mean
        assert (short >= -1e-12).all()
        assert (short <= (3 + neuron(z)) / N).all()


def test_networks_of_switches_run_layer_by_layer(trained: nn.Module, digits) -> None:
    x, y = digits.test.normalise(digits.test.images), digits.test.labels
    coding = TemporalSwitch(48, scale=2)
    snn = convert(trained, "tsc", digits.train.take(64), window=48, hidden="switch", coding=coding)
    assert all(isinstance(n, Switch) for n in snn.neurons.values())
    run = simulate(snn, x, 48)
    assert run.at == (48,)
    assert (run.logits[-1].argmax(1) == y).double().mean() > 0.95
    # The same, layer by layer, from the definition.
    signal = coding.encode(x[:4], 0, 48, 0)
    with torch.no_grad():
        for node in snn.module.graph.nodes:
            if node.op == "call_module" and node.target in snn.sites:
                signal = switched(
                    signal.double().mean(0) / snn.neuron(node.target).threshold.double(), 48
                ).float()
            elif node.op == "call_module":
                operation = snn.module.get_submodule(node.target)
                signal = operation(signal.flatten(0, 1)).view(48, 4, *operation(signal[0]).shape[1:])
    torch.testing.assert_close(run.logits[-1][:4], signal.mean(0), rtol=0.02, atol=0.02)
    with pytest.raises(ValueError, match="48 steps"):
        simulate(snn, x, 32)


@pytest.mark.parametrize("initial", [ZERO, HALF], ids=str)
def test_behind_the_input_neurons_are_those_of_rmp(trained: nn.Module, digits, initial) -> None:
    x = digits.train.normalise(digits.train.images[:30])
    coding = TemporalSwitch(16, scale=2)
    tsc = convert(trained, "tsc", x, window=16, coding=coding, initial=initial)
    rmp = convert(trained, "rmp", x, steps=16, coding=coding, initial=initial)
    for site in tsc.sites:
        assert isinstance(tsc.neuron(site), IntegrateFire)
        assert torch.equal(tsc.neuron(site).threshold, rmp.neuron(site).threshold)
    assert torch.equal(simulate(tsc, x, 16).logits, simulate(rmp, x, 16).logits)


@pytest.mark.parametrize("hidden", ["rmp", "switch"])
@pytest.mark.parametrize("name", ["IdentitySkip", "DenseConcat", "MaxPooled", "SqueezeExcite"])
def test_branches_and_other_codings(name: str, hidden: str) -> None:
    model, x = families.build(name), families.inputs(16)
    for coding in (TemporalSwitch(12, scale=5), ConstantCurrent()):
        snn = convert(model, "tsc", x, window=12, hidden=hidden, coding=coding, factor=1.0)
        assert simulate(snn, x, 12, at=[12]).logits.isfinite().all()
        assert (snn.limit(x).argmax(1) == model(x).argmax(1)).double().mean() > 0.8
