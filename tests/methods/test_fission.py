"""Neurons that matter are split, and their number is reported."""

import torch
from torch import nn

from conftest import images, perceptron
from families import limit_memory
from rheobase import convert, evaluate, prepare, simulate
from rheobase.methods.fission import Fission, _divide
from rheobase.network import Group


def test_the_last_member_of_some_neurons_is_divided() -> None:
    once = _divide(torch.ones(1), torch.tensor([True, False]), 0.75)
    assert once.tolist() == [[0.75, 0.0], [0.25, 1.0]]
    twice = _divide(once, torch.tensor([True, True]), 0.5)
    assert twice.tolist() == [[0.75, 0.0], [0.125, 0.5], [0.125, 0.5]]


def test_it_adds_the_neurons_it_reports(clipped: nn.Module, digits) -> None:
    x = images(digits, 32)
    snn = convert(clipped, "opi", x, then=[Fission(share=0.1, rounds=2, steps=2)])
    plain = convert(clipped, "opi", x)
    counts = [sum(evaluate(s, digits.test.take(4), 2, progress=False).neurons.values()) for s in (plain, snn)]
    added = snn.provenance.found["neurons added"]
    assert counts[1] - counts[0] == added
    assert abs(added - 0.2 * counts[0]) <= 2
    for neuron in snn.neurons.values():
        assert isinstance(neuron, Group)
        torch.testing.assert_close(neuron.sizes.sum(0), torch.ones_like(neuron.sizes[0]))


def test_members_of_no_neuron_have_no_lines() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.rand(16, 6)
    for share, lines, bits in ((1e-9, 1, 1), (1.0, 3, 2)):
        snn = convert(model, "max-norm", x, then=[Fission(share=share, steps=2)])
        timing = evaluate(snn, (x, torch.zeros(16, dtype=torch.int64)), 2, progress=False).timing
        assert timing is not None
        assert (timing.lines, timing.bits) == (lines, bits)


def test_few_steps_gain_from_more_neurons() -> None:
    model = prepare(perceptron(4), "qcfs", start=0.5).eval()
    x = torch.randn(128, 24)
    errors = []
    for share in (0.0, 0.3, 1.0):
        then = [Fission(share=share, rounds=2, steps=2)] if share else []
        run = simulate(convert(model, "qcfs", x, then=then), x, 2, at=[2])
        errors.append((run.logits[0] - model(x)).square().mean().item())
    assert errors[2] < errors[1] < errors[0]


def test_little_memory_gives_the_same_members(clipped: nn.Module, digits, monkeypatch) -> None:
    x = images(digits, 12)
    whole = convert(clipped, "opi", x, then=["fission"])
    limit_memory(monkeypatch, whole, x, samples=5, steps=4)
    parts = convert(clipped, "opi", x, then=["fission"])
    for one, other in zip(whole.neurons.values(), parts.neurons.values(), strict=True):
        assert torch.equal(one.sizes, other.sizes)


def test_the_unit_of_the_outputs_does_not_matter() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
    x, found = torch.randn(32, 8), []
    for scale in (1.0, 2.0**-30):
        with torch.no_grad():
            model[-1].weight *= scale
            model[-1].bias *= scale
        snn = convert(model, "robust-norm", x, then=["fission"])
        found.append([neuron.sizes for neuron in snn.neurons.values()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
