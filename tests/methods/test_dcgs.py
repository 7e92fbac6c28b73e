"""Differential coding: what it costs, and that it settles quickly."""

import torch

from conftest import perceptron
from rheobase import convert, evaluate, simulate
from rheobase.methods.dcgs import DCGS
from rheobase.network import Differential


def test_the_error_falls_with_the_steps_and_events_are_few() -> None:
    model = perceptron(3)
    x = torch.randn(128, 24)
    snn = convert(model, DCGS(steps=8), x)
    assert all(isinstance(n, Differential) and n.threshold.shape == (24,) for n in snn.neurons.values())
    run = simulate(snn, x, 9, at=[2, 5, 9])
    errors = [(y - model(x)).square().mean().item() for y in run.logits]
    assert errors[2] < errors[1] < 0.5 * errors[0]
    result = evaluate(snn, (x, torch.zeros(128, dtype=torch.int64)), 9, progress=False)
    assert result.at(9).per_neuron < 8 * 0.8  # at most one event a step, and often none
    timing = result.timing
    assert timing is not None
    assert (timing.pre, timing.steps, timing.total, timing.lines) == (1, 8, 9, 8)
