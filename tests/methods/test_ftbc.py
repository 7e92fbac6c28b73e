"""Biases by channel and step."""

import pytest
import torch
from torch import nn

from conftest import images
from families import limit_memory
from rheobase import convert, methods, prepare, simulate
from rheobase.analysis.verification import verify
from rheobase.network import Group


def test_one_round_by_hand() -> None:
    """From ½, a = 0.2 sends 0, then 1 from 0.9 + 0.2; a = 0.6 sends 1, then again 1 from 0.7 + 0.6."""
    model = prepare(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), "opi", start=1.0).eval()
    nn.init.ones_(model.get_parameter("0.weight"))
    nn.init.zeros_(model.get_parameter("0.bias"))
    snn = convert(model, "opi", torch.tensor([[0.2], [0.6]]), then=[methods.get("ftbc", steps=2, rounds=1)])
    neuron = snn.neuron(snn.sites[0])
    assert isinstance(neuron, Group)
    assert neuron.bias is not None
    assert neuron.bias.flatten().tolist() == pytest.approx([0.4 * 0.1, 0.4 * 0.6])


def test_every_step_comes_closer_to_the_activation(clipped: nn.Module, digits) -> None:
    x = images(digits, 200)
    errors = []
    for then in ([], [methods.get("ftbc", steps=2, rounds=20)]):
        snn = convert(clipped, "opi", x, then=then)
        run = simulate(snn, x, 2, at=[1, 2])
        errors.append([(y.mean(0) - clipped(x).mean(0)).abs().mean().item() for y in run.logits])
    assert all(after < 0.7 * before for before, after in zip(*errors, strict=True))


def test_little_memory_gives_the_same_biases(clipped: nn.Module, digits, monkeypatch) -> None:
    x = images(digits, 40)
    then = ["signed", "ftbc"]
    whole = convert(clipped, "opi", x, then=then)
    limit_memory(monkeypatch, whole, x, samples=9, steps=4)
    for one, other in zip(
        whole.neurons.values(), convert(clipped, "opi", x, then=then).neurons.values(), strict=True
    ):
        assert torch.equal(one.bias, other.bias)
        assert one.bias.shape == (4, one.bias.shape[1])


def test_other_biases_are_found(clipped: nn.Module, digits) -> None:
    x = images(digits, 32)
    snn = convert(clipped, "opi", x, then=["ftbc"])
    assert verify(clipped, snn, x, long=256).passed
    neuron = snn.neuron(snn.sites[1])
    for wrong in (neuron.bias.clone().index_fill_(0, torch.tensor([2]), 0.5), None):
        neuron.bias = wrong
        failed = [c for c in verify(clipped, snn, x, long=256, raise_on_failure=False).checks if not c.passed]
        assert [(c.name, c.where) for c in failed] == [("neurons", snn.sites[1])]
