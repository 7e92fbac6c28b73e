"""Negative spikes: the rules, and the order of corrections."""

from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import images, perceptron
from rheobase import HALF, convert, evaluate, methods, prepare, save, simulate
from rheobase.methods.signed import Signed
from rheobase.network import Group


def test_the_annealed_rule_falls_over_the_steps() -> None:
    assert Signed(rule="annealed", steps=4).returns == pytest.approx((1.25, 1.0, 0.75, 0.5))
    assert Signed(rule="annealed", steps=16).returns[0] == pytest.approx(1.125)
    assert Signed(rule="annealed", steps=16).returns[-1] == pytest.approx(0.75)
    assert Signed(rule="annealed", steps=1).returns == (1.25,)
    assert (Signed(rule="symmetric").returns, Signed(rule="eager").returns) == ((1.0,), (1e-3,))


def test_the_longest_annealed_rule_can_be_saved(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.rand(4, 2)
    longest = Signed(rule="annealed", steps=4096)
    save(convert(model, "max-norm", x, then=[longest]), tmp_path / "network.safetensors")
    with pytest.raises(ValueError, match="at most 4096 steps, got 4097"):
        Signed(rule="annealed", steps=4097)
    assert Signed(rule="eager", steps=4097).returns == (1e-3,)


def test_it_corrects_any_method_with_plain_neurons(trained: nn.Module, digits) -> None:
    for base in ("robust-norm", "max-norm"):
        snn = convert(trained, base, images(digits, 32), then=["signed"])
        plain = convert(trained, base, images(digits, 32), initial=HALF)
        for neuron, other in zip(snn.neurons.values(), plain.neurons.values(), strict=True):
            assert isinstance(neuron, Group)
            assert torch.equal(neuron.threshold, other.threshold)
            assert neuron.initial == HALF
        assert methods.restore(snn.provenance) == Signed(base=methods.get(base))


def test_an_early_spike_is_taken_back() -> None:
    """An uneven current makes a neuron fire first and says later that it should not have."""
    model = prepare(perceptron(6), "qcfs", start=0.5).eval()
    x = torch.randn(64, 24)
    errors = []
    for then in ([], ["signed"]):
        snn = convert(model, "qcfs", then=then)
        run = simulate(snn, x, 8, at=[8])
        errors.append((run.logits[0] - model(x)).square().mean().item())
        timing = evaluate(snn, (x, torch.zeros(64, dtype=torch.int64)), 8, progress=False).timing
        assert timing is not None
        assert timing.lines == 1 + bool(then)
    assert errors[1] < 0.8 * errors[0]
