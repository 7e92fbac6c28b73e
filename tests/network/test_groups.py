"""Groups: members that share a membrane, negative spikes, biases by step."""

import pytest
import torch
from torch import Tensor

from rheobase import HALF, convert, evaluate
from rheobase.network import Group, IntegrateFire, Memory, Neuron

ONE = torch.tensor(1.0)


def run(neuron: Neuron, *currents: float) -> list[float]:
    """What one neuron sends."""
    current = torch.tensor(currents)[:, None, None]
    return neuron.advance(current, neuron.start(torch.Size((1, 1)), 0, 0), len(currents)).flatten().tolist()


def test_one_member_is_an_integrate_and_fire_neuron() -> None:
    current = torch.randn(20, 4, 3)
    for strict in (False, True):
        plain = IntegrateFire(torch.tensor([0.5, 1.0, 0.0]), initial=HALF, strict=strict)
        group = Group.of(plain)
        membranes = [n.start(torch.Size((4, 3)), 0, 0) for n in (plain, group)]
        spikes = [n.advance(current, m, 20) for n, m in zip((plain, group), membranes, strict=True)]
        assert torch.equal(*spikes)
        assert torch.equal(*membranes)
        assert Group.of(group) is group


def test_members_send_the_digits_of_the_membrane() -> None:
    equal = Group(ONE, sizes=torch.full((4,), 0.25), initial=HALF)
    # From an eighth: 0.425 is one quarter, and 1.575 four, the most.
    assert run(equal, 0.3, 1.4, 0.0) == [0.25, 1.0, 0.5]
    digits = Group(ONE, sizes=torch.tensor([1.0, 0.5, 0.25]), initial=HALF)
    assert run(digits, 0.8, 3.0, 0.0) == [0.75, 1.75, 1.25]
    assert (equal.members, equal.lines, equal.count(10)) == (4, 4, 40)
    split = Group(ONE, sizes=torch.tensor([[0.0, 0.6], [1.0, 0.4]]))
    assert (split.members, split.lines, split.count(10)) == (2, 2, 15)
    x = torch.tensor([[0.7, 0.7]])
    assert split.advance(x, torch.zeros(1, 2), 1).flatten().tolist() == [0.0, pytest.approx(0.6)]
    apart = Group(ONE, sizes=torch.tensor([[0.0, 0.6], [0.5, 0.0], [0.5, 0.4]]))
    assert (apart.members, apart.lines, apart.count(10)) == (2, 2, 20)


def test_events_of_a_step_are_counted_in_a_byte() -> None:
    most, memory = Group(ONE, sizes=torch.full((255,), 1 / 256)), Memory()
    most.advance(torch.ones(1, 1, 1), torch.zeros(1, 1), 1, None, memory)
    assert memory["events"].item() == 255
    with pytest.raises(ValueError, match=r"at most 255 members.* got 256"):
        Group(ONE, sizes=torch.full((256,), 1 / 256))


def test_spikes_are_taken_back_only_if_they_were_sent() -> None:
    symmetric = Group(ONE, returns=(1.0,))
    assert run(symmetric, -1.5, 0.0, 2.5, 0.0) == [0, 0, 1, 0]
    assert run(symmetric, 1.0, -1.0, -1.0) == [1, -1, 0]
    assert run(Group(ONE, returns=(1e-3,)), 1.0, -0.5, 0.0) == [1, -1, 0]
    assert run(Group(ONE, returns=(2.0, 0.5)), 1.0, -0.6, 0.0) == [1, -1, 0]
    assert run(Group(ONE, returns=(2.0, 2.0, 0.5)), 1.0, -0.6, 0.0) == [1, 0, -1]
    assert symmetric.lines == 2
    twice = Group(ONE, sizes=torch.full((2,), 0.5), returns=(1.0,))
    assert run(twice, 1.0, -1.0, -1.0) == [1, -0.5, -0.5]


def test_a_silent_neuron_forgets_what_is_below_zero() -> None:
    assert run(Group(ONE, returns=(1.0,)), -3.0, 1.0) == [0, 0]
    assert run(Group(ONE, returns=(1.0,), forgives=True), -3.0, 1.0) == [0, 1]
    assert run(Group(ONE, returns=(9.0,), forgives=True), 1.0, -3.0, 1.0) == [1, 0, 0]


def test_a_bias_counts_at_its_step() -> None:
    bias = torch.tensor([[0.5], [-0.25]])
    assert run(Group(ONE, bias=bias), 1.0, 0.25, 1.0) == [0, 1, 1]


@pytest.mark.parametrize("parts", [(5, 0), (1, 4), (3, 2)])
def test_the_memory_makes_parts_one_run(parts: tuple[int, int]) -> None:
    group = Group(ONE, sizes=torch.tensor([0.5, 0.5]), returns=(1.0, 0.2, 0.1), bias=torch.rand(4, 3))
    current = torch.randn(5, 2, 3)
    whole = group.advance(current, torch.zeros(2, 3), 5)
    membrane, memory, before, found = torch.zeros(2, 3), Memory(), 0, list[Tensor]()
    for steps in filter(None, parts):
        found.append(group.advance(current[before : before + steps], membrane, steps, None, memory, before))
        assert torch.equal(memory["events"], (found[-1].abs() * 2).to(torch.uint8))
        before += steps
    assert torch.equal(torch.cat(found), whole)


def test_wrong_members_and_bases_are_refused() -> None:
    for sizes in (torch.tensor(1.0), torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0])):
        with pytest.raises(ValueError, match="sizes"):
            Group(ONE, sizes=sizes)
    with pytest.raises(ValueError, match="bias"):
        Group(ONE, bias=ONE)
    with pytest.raises(ValueError, match="reset=zero"):
        Group.of(IntegrateFire(ONE, reset="zero"))


def test_a_summary_counts_every_member(clipped, digits) -> None:
    snn = convert(clipped, "opi", digits.train.take(32), then=["gn"])
    counted = evaluate(snn, digits.test.take(8), 2, progress=False).neurons
    assert {site.site: site.neurons for site in snn.summary().sites} == counted
