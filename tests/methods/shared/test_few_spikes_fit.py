"""Coefficients of few-spikes neurons: the search, and the tables it has made."""

import math

import pytest
import torch

from conftest import respond
from rheobase.methods import few_spikes
from rheobase.methods.shared.few_spikes_fit import place_points
from rheobase.network import FUNCTIONS, Coefficients, FewSpikes


def test_a_fit_repeats_improves_and_takes_any_function() -> None:
    first = few_spikes.fit("silu", 6, (-8, 8), seed=1, climbers=2, iterations=20)
    assert first == few_spikes.fit("silu", 6, (-8, 8), seed=1, climbers=2, iterations=20)
    start = few_spikes.fit("silu", 6, (-8, 8), seed=1, climbers=2, iterations=0)
    assert first.error < start.error
    square = few_spikes.fit(lambda x: x.square() / 4, 8, (-2, 2), climbers=2, iterations=60)
    assert square.error < 0.15
    x = place_points(-2, 2).float()
    neuron = FewSpikes(torch.ones(()), square.coefficients)
    error = (respond(neuron, x) - x.square() / 4).square().mean().sqrt().item()
    assert math.isclose(error, square.error, rel_tol=0.02)


def test_every_table_is_as_near_as_it_says() -> None:
    found = few_spikes.tables()
    assert {t.function for t in found} == {"silu", "gelu", "sigmoid"}
    for table in found:
        x = place_points(*table.bounds).float()
        y = FUNCTIONS[table.function](x)
        neuron = FewSpikes(torch.ones(()), table.fit.coefficients, table.function)
        error = (respond(neuron, x) - y).square().mean().sqrt().item()
        assert math.isclose(error, table.fit.error, rel_tol=0.02), table
        assert error < {8: 0.09, 12: 0.06, 16: 0.04}[table.steps], table


def test_coefficients_and_bounds_are_checked() -> None:
    with pytest.raises(ValueError, match=r"bounds=\(8, -8\)"):
        few_spikes.fit("silu", 8, (8, -8))
    with pytest.raises(ValueError, match="1, 1, 0"):
        Coefficients((1.0,), (1.0,), ())
