"""Searched starts, and outputs that count only after a delay."""

import pytest
import torch

from conftest import images
from rheobase import HALF, ZERO, convert, evaluate, simulate
from rheobase.simulation import Simulator


def test_it_is_far_ahead_of_zero(trained, digits) -> None:
    x = images(digits, 64)
    accuracy = {}
    for initial in (None, ZERO, HALF):
        snn = convert(trained, "hwang", x, initial=initial)
        accuracy[str(initial)] = evaluate(snn, digits.test, 8, progress=False).accuracy[-1]
    assert accuracy["None"] >= accuracy["zero"] + 5
    assert accuracy["half"] >= accuracy["zero"]
    assert accuracy["None"] >= 95


def test_a_delayed_read_out_is_the_mean_over_the_steps_after_it(trained, digits) -> None:
    x = images(digits, 8)
    snn = convert(trained, "max-norm", x, initial=HALF)
    plain = simulate(snn, x, 12).logits.double()
    sums = plain * torch.arange(1, 13).view(-1, 1, 1)
    late = simulate(snn, x, 12, delay=5)
    assert late.at == tuple(range(6, 13))
    expected = (sums[5:] - sums[4]) / torch.arange(1, 8).view(-1, 1, 1)
    torch.testing.assert_close(late.logits.double(), expected, atol=1e-5, rtol=1e-5)
    for chunk in (1, 4, 5):
        assert torch.equal(late.logits, Simulator(snn, x, 12, delay=5, chunk=chunk).run(x).logits)
    with pytest.raises(ValueError, match="must lie in 6…12, got"):
        simulate(snn, x, 12, delay=5, at=[5])
    for delay in (-1, 12, 1.5):
        with pytest.raises(ValueError, match="delay must"):
            simulate(snn, x, 12, delay=delay)  # type: ignore[arg-type]
