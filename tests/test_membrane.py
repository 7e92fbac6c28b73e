"""Starts: by name, by number, and drawn at random."""

import pytest
import torch
from torch import nn

from rheobase import Constant, Gaussian, Half, Searched, Uniform, Zero, convert
from rheobase.coding import Poisson
from rheobase.membrane import Initial, parse


@pytest.mark.parametrize(
    ("given", "start"),
    [("half", Half()), ("zero", Zero()), ("0.3", Constant(0.3)), (0.3, Constant(0.3)), (1, Constant(1)),
     ("uniform", Uniform()), ("searched:4", Searched(4)), (Gaussian(), Gaussian())],
)  # fmt: skip
def test_a_name_or_a_number_will_do(given, start: Initial, clipped: nn.Module) -> None:
    assert parse(given) == start
    if start != Searched(4):
        snn = convert(clipped, "opi", initial=given, coding="poisson:3")
        assert all(neuron.initial == start for neuron in snn.neurons.values())
        assert snn.coding == Poisson(seed=3)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("hlf", ValueError, "give one of zero, half, uniform"),
        ("nan", ValueError, "a finite number"),
        ([0.5], TypeError, r"got \[0\.5\]"),
        (True, TypeError, "got True"),
        (Half, TypeError, r"call it, Half\(\)"),
    ],
)
def test_others_are_refused(given, error: type, message: str, clipped: nn.Module) -> None:
    with pytest.raises(error, match=message):
        convert(clipped, "opi", initial=given)


def test_codings_by_name(clipped: nn.Module) -> None:
    with pytest.raises(TypeError, match="an input coding is"):
        convert(clipped, "opi", coding=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown input coding"):
        convert(clipped, "opi", coding="poison")


def test_bad_numbers() -> None:
    with pytest.raises(ValueError, match="a finite number"):
        Uniform(0, float("inf"))
    with pytest.raises(ValueError, match="whole number of at least 0"):
        Gaussian(seed=-1)


@pytest.mark.parametrize("start", [Uniform(), Gaussian(), Uniform(seed=2**40)], ids=str)
def test_no_two_sites_or_samples_draw_the_same(start: Initial) -> None:
    rows = [start.potential(torch.ones(()), torch.Size((64, 5)), site, 0) for site in range(8)]
    assert len(torch.cat(rows).unique(dim=0)) == 8 * 64
