"""Threshold balancing, which rmp, spike-norm, tsc and hybrid share."""

import pytest
import torch
from torch import nn

import families
from rheobase import convert, simulate
from rheobase.methods.shared import settling
from rheobase.network import ConstantCurrent, IntegrateFire


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
