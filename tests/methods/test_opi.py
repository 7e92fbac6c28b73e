"""Optimized potential initialisation."""

from torch import nn

from rheobase import HALF, ZERO, convert, simulate
from rheobase.training import datasets


def test_the_half_start_is_ahead_at_few_steps(clipped: nn.Module, digits: datasets.Dataset) -> None:
    x, y = digits.test.normalise(digits.test.images), digits.test.labels
    accuracy = {}
    for initial in (ZERO, HALF):
        run = simulate(convert(clipped, "opi", initial=initial), x, 8, at=[4, 8])
        accuracy[str(initial)] = (run.logits.argmax(-1) == y).double().mean(1)
    assert accuracy["half"][0] > accuracy["zero"][0] + 0.2
    assert accuracy["half"][1] > accuracy["zero"][1]
    ann = (clipped(x).argmax(-1) == y).double().mean()
    assert accuracy["half"][1] >= ann - 0.03
