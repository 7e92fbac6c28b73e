"""Residual potential: the pre-run is part of the latency."""

import pytest
import torch
from torch import nn

from conftest import images, perceptron
from rheobase import Margin, convert, evaluate, fit_exit, prepare, simulate
from rheobase.methods.srp import SRP


def test_only_steps_after_the_rehearsal_are_answers(clipped: nn.Module, digits) -> None:
    snn = convert(clipped, "opi", then=[SRP(pre=3)])
    assert snn.delay == 3
    result = evaluate(snn, digits.test.take(64), 5, progress=False)
    assert [a is None for a in result.accuracy] == [True, True, True, False, False]
    timing = result.timing
    assert timing is not None
    assert (timing.pre, timing.steps, timing.total, timing.lines) == (3, 2, 5, 1)
    run = simulate(snn, images(digits, 2), 5)
    assert run.at == (4, 5)
    for delay in (0, 2):
        with pytest.raises(ValueError, match=f"3 steps.*delay={delay}"):
            simulate(snn, images(digits, 2), 5, delay=delay)


def test_exit_rules_are_refused(clipped: nn.Module, digits) -> None:
    with pytest.raises(ValueError, match="3 steps"):
        fit_exit(convert(clipped, "opi", then=[SRP(pre=3)]), digits.train.take(400), Margin, steps=8)


def test_it_silences_neurons_that_should_be_zero() -> None:
    """Behind uneven currents, fewer neurons fire that are zero in the ANN."""
    model = prepare(perceptron(6), "qcfs", start=0.5).eval()
    x = torch.randn(64, 24)
    plain = simulate(convert(model, "qcfs"), x, 4, at=[4]).logits[0]
    masked = simulate(convert(model, "qcfs", then=["srp"]), x, 8, at=[8]).logits[0]
    assert (masked - model(x)).square().mean() < (plain - model(x)).square().mean()
