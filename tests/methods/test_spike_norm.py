"""Spike-Norm: thresholds by hand, and what they mean where there are biases and branches."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import families
from rheobase import convert, simulate
from rheobase.network.codings import ConstantCurrent, Poisson
from rheobase.simulation import Probe


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer


def test_thresholds_of_two_layers_by_hand() -> None:
    """For x = 1: currents 2 and 1, so θ(1) = 2, and the second neuron fires at every other step.

    With unit spikes the currents of layer 2 are then 1·1 + 3·0 = 1 and 1·1 + 3·1 = 4: θ(2) = 4. A spike of
    layer 1 being worth 2 here, that is 2·4 = 8.
    """
    model = nn.Sequential(linear([[2.0], [1.0]]), nn.ReLU(), linear([[1.0, 3.0]]), nn.ReLU(), linear([[1.0]]))
    snn = convert(model, "spike-norm", torch.ones(1, 1), coding=ConstantCurrent(), steps=4)
    assert [n.threshold.item() for n in snn.neurons.values()] == [2.0, 8.0]
    # Layer 2 gets 2, 8, 2, 8 …: potentials 2, 10 → 0, 2, 10 → 0; a spike at every other step.
    run = simulate(snn, torch.ones(1, 1), 4)
    assert run.spikes["1"].tolist() == [1, 2, 1, 2]
    assert run.spikes["3"].tolist() == [0, 1, 0, 1]
    one = convert(model, "spike-norm", torch.ones(1, 1), coding=ConstantCurrent(), steps=1)
    assert one.neuron("3").threshold.item() == 2.0  # one step has not seen the second neuron fire


@pytest.mark.parametrize("coding", [ConstantCurrent(), Poisson(seed=4)], ids=str)
def test_the_weighted_form_fires_as_the_unit_spikes_of_the_paper(coding) -> None:
    """The paper's procedure with spikes of 1, each bias divided by the thresholds before it."""
    torch.manual_seed(0)
    widths, T = [6, 12, 10, 7], 40
    layers = [nn.Linear(a, b).double() for a, b in pairwise(widths)]
    model = nn.Sequential(
        layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.ReLU(), nn.Linear(7, 3).double()
    )
    x = 2 * torch.rand(5, 6, dtype=torch.float64) - 1
    snn = convert(model, "spike-norm", x, coding=coding, steps=T)
    run = simulate(snn, x, T)
    coded = coding.encode(x, 0, T, 0).expand(T, 5, 6)
    scale, thresholds = 1.0, []
    with torch.no_grad():
        spikes = coded
        for site, layer in zip(snn.sites, layers, strict=True):
            current = spikes @ layer.weight.T + layer.bias / scale
            thresholds.append(current.max().item())
            spikes = families.hard_spikes(current, thresholds[-1])
            scale *= thresholds[-1]
            assert snn.neuron(site).threshold.item() == pytest.approx(scale)
            # The largest current is where threshold and potential meet, to the last bit: leave that one out.
            assert (run.spikes[site] - spikes.sum((1, 2)).long()).abs().sum() <= 2


@pytest.mark.parametrize("name", sorted(families.FAMILIES))
def test_every_network_with_biases_keeps_its_answers(name: str) -> None:
    """With a soft neuron in place, so that the rate is exact; branches bring their scales to their sum."""
    model, x = families.build(name), families.inputs(48)
    snn = convert(model, "spike-norm", x, coding=ConstantCurrent(), steps=30)
    for neuron in snn.neurons.values():
        neuron.reset = "subtract"
    assert (snn.limit(x).argmax(1) == model(x).argmax(1)).double().mean() >= 0.9


def test_one_threshold_for_the_sum_of_a_residual_block() -> None:
    model, x = families.build("IdentitySkip"), families.inputs(8)
    snn = convert(model, "spike-norm", x, coding=ConstantCurrent(), steps=20)
    last, largest = snn.sites[-1], []
    simulate(
        snn, x, 20, probe=Probe([snn.source(last)], lambda _, current, __: largest.append(current.max()))
    )
    neuron = snn.neuron(last)
    assert neuron.threshold.dim() == 0
    assert torch.stack(largest).max().item() == pytest.approx(neuron.threshold.item(), rel=1e-5)


def test_a_deep_network_converts_though_rounding_decides_its_rates() -> None:
    """After a reset to zero a rate is 1/ceil(θ/z): where θ/z is nearly whole, folding moves it."""
    torch.manual_seed(1)
    layers = [layer for inputs in (16, *[64] * 8) for layer in (nn.Linear(inputs, 64), nn.ReLU())]
    for linear in layers[::2]:
        nn.init.kaiming_normal_(linear.weight)
    snn = convert(nn.Sequential(*layers, nn.Linear(64, 5)), "spike-norm", torch.rand(16, 16), steps=30)
    assert len(snn.sites) == 9


def test_inputs_beyond_the_range_of_its_coding_are_refused(trained: nn.Module, digits) -> None:
    with pytest.raises(ValueError, match="scale="):
        convert(trained, "spike-norm", digits.train.take(8))
