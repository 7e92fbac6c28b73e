"""Rehearsals by hand, and neurons that wait for their window."""

import pytest
import torch

from rheobase import HALF
from rheobase.network import Memory, Rehearsed, Waiting

ONE = torch.tensor(1.0)


def run(neuron: Rehearsed, *currents: float, cut: int = 0) -> list[float]:
    current, membrane, memory = torch.tensor(currents)[:, None, None], torch.full((1, 1), 0.5), Memory()
    first = neuron.advance(current[:cut], membrane, cut, None, memory)
    rest = neuron.advance(current[cut:], membrane, len(current) - cut, None, memory, cut)
    return torch.cat([first, rest]).flatten().tolist()


@pytest.mark.parametrize("cut", range(5))
def test_a_mask_silences_who_has_nothing_left(cut: int) -> None:
    neuron = Rehearsed(ONE, initial=HALF, rule="mask", length=2)
    assert run(neuron, 0.6, -0.4, 0.6, 0.6, cut=cut) == [1, 0, 0, 0]  # 0.5 + 0.6 − 1 − 0.4 is below zero
    assert run(neuron, 0.6, 0.1, 0.6, 0.9, cut=cut) == [1, 0, 1, 1]


@pytest.mark.parametrize("cut", range(7))
def test_a_shift_removes_or_adds_a_spike(cut: int) -> None:
    neuron = Rehearsed(ONE, initial=HALF, rule="shift", length=2)
    # It ends at −0.3 after one spike, so that it starts at ½ − 1.
    assert run(neuron, 0.6, -0.4, 0.6, -0.4, 0.9, 0.4, cut=cut) == [1, 0, 0, 0, 0, 1]
    # It ends at 1.1, and the most without a spike was 0, so that it starts at ½ + 1.001.
    assert run(neuron, -0.5, 2.1, -0.1, 0.6, cut=min(cut, 4)) == [0, 1, 1, 1]


def test_turns_follow_each_other() -> None:
    neuron = Rehearsed(ONE, initial=HALF, rule="shift", length=1, turn=2, turns=3)
    assert run(neuron, 0.6, 0.6, 0.6, 0.6) == [1, 1, 1, 1]
    assert run(neuron, -9.0, 0.6, 0.6, 0.6) == [0, 1, 1, 1]  # each turn starts again
    with pytest.raises(ValueError, match=r"1 … 2.*3"):
        Rehearsed(ONE, rule="mask", length=1, turn=3, turns=2)


@pytest.mark.parametrize("even", [False, True])
def test_a_waiting_neuron_sends_the_rounded_sum(even: bool) -> None:
    neuron = Waiting(ONE, initial=HALF, window=4, even=even)
    current = torch.tensor([[0.0, 3.0, -1.0], [2.5, 3.0, 0.0], [-0.1, 0.0, 0.0], [0.0, 3.0, 0.0]])[:, None]
    spikes = neuron.advance(current, neuron.start(torch.Size((1, 3)), 0, 0), 4)
    assert spikes.sum(0).flatten().tolist() == [2, 4, 0]
    assert spikes[:, 0, 0].tolist() == ([0, 1, 0, 1] if even else [1, 1, 0, 0])
