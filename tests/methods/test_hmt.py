"""Thresholds for normal currents, and binary digits."""

import pytest
import torch
from torch import nn

from rheobase import convert, simulate
from rheobase.methods.hmt import HMT, best_quantum
from rheobase.network import Group


@pytest.mark.parametrize(
    ("mean", "deviation", "levels", "most"),
    [
        (0.0, 1.0, 8, 1.002), (-1.0, 0.5, 4, 1.002), (2.0, 1.0, 15, 1.002),
        (-3.0, 1.0, 16, 1.01), (3.0, 1.0, 16, 1.01), (-3.0, 1.0, 60, 1.6),
    ],
)  # fmt: skip
def test_the_quantum_is_near_that_of_brute_force(
    mean: float, deviation: float, levels: int, most: float
) -> None:
    found = best_quantum(torch.tensor([mean]).double(), torch.tensor([deviation]).double(), levels).item()
    z = mean + deviation * torch.special.ndtri(torch.linspace(1e-6, 1 - 1e-6, 200_001, dtype=torch.float64))

    def error(quantum: float) -> float:
        return (z - quantum * (z / quantum + 0.5).floor().clamp(0, levels)).square().mean().item()

    grid = torch.linspace(0.5, 1.5, 201) * found
    best = min(grid.tolist(), key=error)
    assert error(found) <= most * error(best)


def test_channels_that_never_activate_are_dead() -> None:
    quantum = best_quantum(torch.tensor([-50.0, 1.0]).double(), torch.tensor([1.0, 0.0]).double(), 4)
    assert quantum[0] == 0
    assert quantum[1].item() == pytest.approx(0.25, rel=0.2)


def test_one_step_rounds_to_the_digits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(200, 6)
    errors = []
    for members in (2, 4, 6):
        snn = convert(model, HMT(steps=1, members=members), x)
        neuron = snn.neuron(snn.sites[0])
        assert isinstance(neuron, Group)
        assert (neuron.lines, neuron.threshold.shape) == (members, (8,))
        errors.append((simulate(snn, x, 1).logits[0] - model(x)).square().mean().item())
    assert errors[2] < errors[1] < 0.3 * errors[0]


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
@pytest.mark.parametrize("name", ["hmt", "dcgs"])
def test_thresholds_scale_with_currents_of_any_size(name: str, scale: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = torch.randn(200, 6)
    usual, scaled = (convert(model, name, x * factor).neurons["1"].threshold for factor in (1.0, scale))
    torch.testing.assert_close(scaled / scale, usual)
