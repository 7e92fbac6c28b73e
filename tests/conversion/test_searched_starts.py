"""Searched starts: the constant of the grid with the smallest error at each site."""

import pytest
import torch
from torch import nn

from families import build, inputs
from rheobase import Constant, Searched, convert


@pytest.mark.parametrize("objective", ["absolute", "squared", "agreement"])
def test_starts_are_taken_from_the_grid(objective: str) -> None:
    grid = (0.0, 0.5)
    snn = convert(build("Plain"), "max-norm", inputs(), initial=Searched(4, grid, objective), progress=False)
    assert {neuron.initial for neuron in snn.neurons.values()} <= {Constant(fraction) for fraction in grid}


def test_the_best_start_rounds_to_the_nearest() -> None:
    """In one step an activation of 0.7 θ is nearest to one spike, and needs a start of at least 0.3 θ."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU()).eval()
    nn.init.ones_(model[0].weight)
    x = torch.tensor([[1.0], *[[0.7]] * 9])
    snn = convert(model, "max-norm", x, initial=Searched(1, (0.0, 0.2, 0.4)), progress=False)
    assert snn.neuron("1").initial == Constant(0.4)
