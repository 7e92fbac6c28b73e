"""Hybrid training: balanced thresholds, then gradients through spikes."""

import pytest
import torch
from torch.nn import functional as F

from conftest import images
from rheobase import HALF, convert, evaluate, methods, simulate
from rheobase.methods import fine_tuning, hybrid
from rheobase.network.codings import ConstantCurrent, Poisson
from rheobase.simulation import plan_calls
from rheobase.simulation.backward import SpikeTime, Triangle, unroll


def test_thresholds_are_a_share_of_the_largest_current(trained, digits) -> None:
    x = images(digits, 32)
    snn = convert(trained, "hybrid", x, steps=12, coding=Poisson(scale=4.0))
    reference = convert(trained, "rmp", x, steps=12, factor=0.7, coding=Poisson(scale=4.0))
    for site in snn.sites:
        assert torch.equal(snn.neuron(site).threshold, reference.neuron(site).threshold)
    whole = convert(trained, "hybrid", x, steps=12, factor=1.0, coding=Poisson(scale=4.0))
    site = snn.sites[0]
    torch.testing.assert_close(snn.neuron(site).threshold, 0.7 * whole.neuron(site).threshold)
    assert isinstance(methods.get("hybrid").coding, Poisson)


def test_dropout_is_the_same_at_every_step(trained, digits) -> None:
    x = images(digits, 4)
    snn = convert(trained, "max-norm", x, initial=HALF)
    masks = fine_tuning._draw_masks(snn, plan_calls(snn, x), x, 0.5, seed=0)
    assert set(masks) == set(snn.sites)
    for mask in masks.values():
        assert set(mask.unique().tolist()) == {0.0, 2.0}
        assert 0.4 < (mask == 0).double().mean() < 0.6
    gone = {site: torch.zeros_like(mask) for site, mask in masks.items()}
    bias = unroll(snn, x, 5, Triangle(), masks=gone)
    assert torch.equal(bias, bias[:1].expand_as(bias))  # nothing of the input gets through
    assert not torch.equal(unroll(snn, x, 5, Triangle(), masks=masks), unroll(snn, x, 5, Triangle()))


SETTINGS = {"batch_size": 32, "learning_rate": 3e-3, "dropout": 0.1, "progress": False}


@pytest.mark.parametrize("surrogate", [Triangle(), SpikeTime()], ids=["triangle", "spike time"])
def test_fine_tuning_lowers_the_loss(trained, digits, surrogate) -> None:
    split = digits.train.take(160)
    snn = convert(trained, "hybrid", split, steps=20, coding=ConstantCurrent())
    before = {k: v.clone() for k, v in snn.state_dict().items()}
    tuned = hybrid.fine_tune(snn, split, 6, epochs=3, surrogate=surrogate, **SETTINGS)
    x, y = split.normalise(split.images), split.labels
    losses = [F.cross_entropy(simulate(s, x, 6, at=[6]).logits[0], y).item() for s in (snn, tuned)]
    assert losses[1] < 0.7 * losses[0]
    assert all(torch.equal(before[k], v) for k, v in snn.state_dict().items())
    for site in snn.sites:
        assert torch.equal(snn.neuron(site).threshold, tuned.neuron(site).threshold)
    assert not any(p.requires_grad for p in tuned.parameters())
    accuracy = [evaluate(s, digits.test, 6, progress=False).accuracy[-1] for s in (snn, tuned)]
    assert accuracy[1] > accuracy[0] + 5


def test_fine_tuning_repeats_to_the_bit(trained, digits) -> None:
    split = digits.train.take(64)
    snn = convert(trained, "hybrid", split, steps=4, coding=Poisson(scale=4.0))
    tuned = [hybrid.fine_tune(snn, split, 3, chunk=2, seed=seed, **SETTINGS) for seed in (5, 5, 6)]
    with torch.inference_mode():
        tuned.append(hybrid.fine_tune(snn, split, 3, chunk=2, seed=5, **SETTINGS))
    states = [list(t.state_dict().values()) for t in tuned]
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[1], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(states[0], states[3], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(states[0], states[2], strict=True))


def test_what_cannot_be_trained_is_refused(trained, digits) -> None:
    split = digits.train.take(64)
    with pytest.raises(TypeError, match=r"'2'.*FewSpikes"):
        hybrid.fine_tune(convert(trained, "few-spikes", split, steps=4), split, 4, progress=False)
    with pytest.raises(ValueError, match="dropout"):
        hybrid.fine_tune(convert(trained, "max-norm", split), split, 4, dropout=1.0)
