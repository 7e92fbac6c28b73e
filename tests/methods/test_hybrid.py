"""Hybrid training: balanced thresholds, then gradients through spikes."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import families
from rheobase import HALF, convert, evaluate, methods, simulate
from rheobase.methods import hybrid
from rheobase.network.codings import ConstantCurrent, Poisson
from rheobase.network.snn import SNN
from rheobase.simulation.backward import SpikeTime, Triangle, unroll
from rheobase.training import datasets


def images(digits: datasets.Dataset, count: int) -> Tensor:
    return digits.train.normalise(digits.train.images[:count])


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


def learning(snn: SNN) -> list[nn.Parameter]:
    return list(snn.requires_grad_().parameters())


@pytest.mark.parametrize("name", ["SharedReLU", "MaxPooled", "SqueezeExcite", "DenseConcat"])
@pytest.mark.parametrize("coding", [ConstantCurrent(), Poisson(scale=5.0)], ids=["constant", "poisson"])
def test_the_forward_pass_is_the_simulation(name: str, coding) -> None:
    x = families.inputs(4)
    snn = convert(families.build(name), "max-norm", x, initial=HALF, coding=coding)
    expected = simulate(snn, x, 6, at=[6]).logits[0]
    for chunk in (6, 4, 1):
        got = unroll(snn, x, 6, Triangle(), chunk=chunk)
        torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("surrogate", [Triangle(), SpikeTime()], ids=["triangle", "spike time"])
@pytest.mark.parametrize("name", ["SharedReLU", "MaxPooled"])
def test_chunks_change_no_gradient(name: str, surrogate) -> None:
    x, y = families.inputs(4), torch.tensor([0, 1, 2, 3])
    snn = convert(families.build(name), "max-norm", x, initial=HALF, coding=Poisson(scale=5.0))
    parameters = learning(snn)
    gradients = []
    for chunk in (7, 3, 1):
        loss = F.cross_entropy(unroll(snn, x, 7, surrogate, chunk=chunk), y)
        gradients.append(torch.autograd.grad(loss, parameters))
    assert any(g.abs().max() > 0 for g in gradients[0])
    for other in gradients[1:]:
        for a, b in zip(gradients[0], other, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-4)


def one_neuron(weight: float) -> SNN:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).eval()
    nn.init.constant_(model[0].weight, weight)
    nn.init.ones_(model[2].weight)
    return convert(model, "max-norm", torch.ones(1, 1))  # θ = weight, folded into the second layer


def test_gradients_are_the_surrogates_equations() -> None:
    """One neuron with u(1) = 0.4, u(2) = 0.8, u(3) = 1.2 fires at the third step; by hand from there."""
    x = torch.tensor([[0.4]])
    slopes = {
        # du(t)/dw = 0.4·t, as the reset counts as given
        Triangle(): sum(0.3 * max(0, 1 - abs(0.4 * t - 1)) * 0.4 * t for t in (1, 2, 3)),
        SpikeTime(): sum(0.3 * math.exp(-0.01 * (t - 1 + 1000)) * 0.4 * t for t in (1, 2, 3)),
    }
    for surrogate, expected in slopes.items():
        snn = one_neuron(1.0)
        first, _ = learning(snn)
        (gradient,) = torch.autograd.grad(unroll(snn, x, 3, surrogate).sum(), [first])
        assert gradient.item() == pytest.approx(expected / 3, rel=1e-4)
    snn = one_neuron(1.0)
    first, _ = learning(snn)
    gradients = [
        torch.autograd.grad(unroll(snn, x, steps, SpikeTime(beta=0.5)).sum() * steps, [first])[0].item()
        for steps in (3, 4)
    ]
    # The fourth step comes one step after the spike.
    assert gradients[1] - gradients[0] == pytest.approx(0.3 * math.exp(-0.5) * 1.6, rel=1e-4)


def test_a_reset_to_zero_forgets() -> None:
    """As above, but after the spike at the third step nothing is left of what was before."""
    snn = one_neuron(1.0)
    first, _ = learning(snn)
    for neuron in snn.neurons.values():
        neuron.reset = "zero"
    for chunk in (4, 3, 1):
        total = unroll(snn, torch.tensor([[0.4]]), 4, Triangle(), chunk=chunk).sum() * 4
        (gradient,) = torch.autograd.grad(total, [first])
        age = (1, 2, 3, 1)
        expected = sum(0.3 * max(0, 1 - abs(0.4 * t - 1)) * 0.4 * t for t in age)
        assert gradient.item() == pytest.approx(expected, rel=1e-4)


def test_memory_grows_with_the_chunk_and_not_with_the_run(trained, digits) -> None:
    x = images(digits, 4)
    snn = convert(trained, "max-norm", x)
    learning(snn)

    def held(steps: int, chunk: int) -> int:
        """Bytes that autograd holds for the backward pass outside of what it will compute again."""
        sizes: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            unroll(snn, x, steps, Triangle(), chunk=chunk)
        return sum(sizes)

    whole = [held(steps, steps) for steps in (8, 32)]
    chunked = [held(steps, 4) for steps in (8, 32)]
    assert whole[1] > 3 * whole[0]
    assert chunked[1] < 0.1 * whole[1]
    assert chunked[1] - chunked[0] < 0.02 * (whole[1] - whole[0])


def test_dropout_is_the_same_at_every_step(trained, digits) -> None:
    x = images(digits, 4)
    snn = convert(trained, "max-norm", x, initial=HALF)
    masks = hybrid._draw_masks(snn, x, 0.5, seed=0)
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
