"""Opt.: threshold ReLU and a shift of half a threshold over the run."""

import pytest
import torch
from torch import nn

from rheobase import HALF, convert, methods, prepare, simulate
from rheobase.network.activations import Rectifier
from rheobase.simulation import Simulator


def relay() -> nn.Sequential:
    """One neuron whose current is the input."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1))
    for layer in (model[0], model[2]):
        nn.init.ones_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model.eval()


@pytest.mark.parametrize("steps", [1, 2, 4, 8, 16])
def test_after_its_steps_it_counts_like_a_half_start(steps: int) -> None:
    calibration, x = torch.tensor([[1.0]]), torch.arange(-64, 192)[:, None] / 128
    opt = Simulator(convert(relay(), "opt", calibration, steps=steps), x, steps, read="1").run(x).logits
    half = (
        Simulator(convert(relay(), "max-norm", calibration, initial=HALF), x, steps, read="1").run(x).logits
    )
    assert torch.equal(opt[-1], half[-1])
    assert torch.equal(opt[-1], (steps * x + 0.5).floor().clamp(0, steps) / steps)
    assert (opt <= half).all()


def test_dead_channels_stay_silent() -> None:
    model = relay()
    nn.init.constant_(model[0].bias, -5)
    with pytest.warns(UserWarning, match="never activated"):
        snn = convert(model, "opt", torch.tensor([[1.0]]), steps=4)
    assert (
        Simulator(snn, torch.tensor([[1.0]]), 8, read="1").run(torch.tensor([[1.0]])).logits.abs().max() == 0
    )
    assert all(p.isfinite().all() for p in snn.parameters())


def test_the_training_activation_is_cut_at_the_ceiling_with_slope_one_below() -> None:
    prepared = prepare(relay(), "opt", steps=8, ceiling=2.0)
    activation = next(m for m in prepared.modules() if isinstance(m, Rectifier))
    z = torch.tensor([-1.0, 0.5, 1.9, 2.5], requires_grad=True)
    a = activation(z)
    assert a.tolist() == [0.0, 0.5, pytest.approx(1.9), 2.0]
    a.sum().backward()
    assert z.grad.tolist() == [0.0, 1.0, 1.0, 0.0]
    snn = convert(prepared.eval(), "opt", torch.tensor([[5.0]]), steps=8)
    assert snn.neuron(snn.sites[0]).threshold == 2


def test_groups_get_half_of_what_they_round_to() -> None:
    """With m members and T steps a constant current is rounded to the nearest multiple of θ/(m·T)."""
    x = torch.linspace(0, 4, 102)[:, None]
    snn = convert(relay(), "opt", x, steps=2, then=[methods.get("gn", members=4)])
    outputs = simulate(snn, x, 2, at=[2]).logits[0]
    torch.testing.assert_close(outputs, (2 * x + 0.5).floor().clamp(max=8) / 2)
