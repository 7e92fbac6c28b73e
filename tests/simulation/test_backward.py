"""Gradients through spikes."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import families
from conftest import images
from rheobase import HALF, convert, simulate
from rheobase.network import SNN, ConstantCurrent, Group, Poisson
from rheobase.simulation.backward import SpikeTime, Triangle, unroll


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


@pytest.mark.parametrize("then", [["signed"], ["gn", "signed"], ["fission", "signed", "ftbc"]], ids=str)
def test_groups_run_as_in_the_simulation(then: list[str]) -> None:
    x = families.inputs(8)
    snn = convert(families.build("SharedReLU"), "max-norm", x, then=then)
    expected = simulate(snn, x, 5, at=[5]).logits[0]
    for chunk in (5, 2):
        torch.testing.assert_close(unroll(snn, x, 5, Triangle(), chunk=chunk), expected, atol=1e-4, rtol=1e-4)


def test_a_group_of_one_has_the_gradients_of_a_neuron() -> None:
    x = families.inputs(4)
    snn = convert(families.build("SharedReLU"), "max-norm", x, initial=HALF)
    gradients = []
    for group in (False, True):
        for site, neuron in snn.neurons.items():
            held = Group.of(neuron) if group else neuron
            threshold = nn.Parameter(held.threshold.detach())
            del held.threshold
            held.register_parameter("threshold", threshold)
            snn.module.set_submodule(site, held)
        parameters = learning(snn)
        assert sum("threshold" in name for name, _ in snn.named_parameters()) == len(snn.sites)
        loss = unroll(snn, x, 6, Triangle()).square().mean()
        named = dict(
            zip((n for n, _ in snn.named_parameters()), torch.autograd.grad(loss, parameters), strict=True)
        )
        gradients.append(named)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4)


def test_the_gradient_of_a_threshold_by_hand() -> None:
    """U = 0.8, 1.2 with θ = 1: s(2) = 1 after v(0) = ½·θ; the mean output moves by slopes alone."""
    snn = one_neuron()
    neuron = snn.neuron(snn.sites[0])
    threshold = nn.Parameter(neuron.threshold.detach())
    del neuron.threshold
    neuron.register_parameter("threshold", threshold)
    neuron.initial = HALF
    (gradient,) = torch.autograd.grad(unroll(snn, torch.tensor([[0.4]]), 2, Triangle()).sum(), [threshold])
    # Height u/θ = 0.9 and 1.3: slopes 0.3·0.9 and 0.3·0.7; d(u/θ)/dθ = ½ − u.
    assert gradient.item() == pytest.approx((0.27 * (0.5 - 0.9) + 0.21 * (0.5 - 1.3)) / 2)


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


def one_neuron() -> SNN:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).eval()
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[2].weight)
    return convert(model, "max-norm", torch.ones(1, 1))  # θ = 1, folded into the second layer


def test_gradients_are_the_surrogates_equations() -> None:
    """One neuron with u(1) = 0.4, u(2) = 0.8, u(3) = 1.2 fires at the third step; by hand from there."""
    x = torch.tensor([[0.4]])
    slopes = {
        # du(t)/dw = 0.4·t, as the reset counts as given
        Triangle(): sum(0.3 * max(0, 1 - abs(0.4 * t - 1)) * 0.4 * t for t in (1, 2, 3)),
        SpikeTime(): sum(0.3 * math.exp(-0.01 * (t - 1 + 1000)) * 0.4 * t for t in (1, 2, 3)),
    }
    for surrogate, expected in slopes.items():
        snn = one_neuron()
        first, _ = learning(snn)
        (gradient,) = torch.autograd.grad(unroll(snn, x, 3, surrogate).sum(), [first])
        assert gradient.item() == pytest.approx(expected / 3, rel=1e-4)
    snn = one_neuron()
    first, _ = learning(snn)
    gradients = [
        torch.autograd.grad(unroll(snn, x, steps, SpikeTime(beta=0.5)).sum() * steps, [first])[0].item()
        for steps in (3, 4)
    ]
    # The fourth step comes one step after the spike.
    assert gradients[1] - gradients[0] == pytest.approx(0.3 * math.exp(-0.5) * 1.6, rel=1e-4)


def test_a_reset_to_zero_forgets() -> None:
    """As above, but after the spike at the third step nothing is left of what was before."""
    snn = one_neuron()
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
