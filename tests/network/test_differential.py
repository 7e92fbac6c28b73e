"""Events that change a mean, by hand and against the authors' recursion."""

import torch

from rheobase.network import Differential, Memory

ONE = torch.tensor(1.0)


def run(neuron: Differential, current_TB: torch.Tensor, cut: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    membrane, memory = neuron.start(current_TB.shape[1:], 0, 0), Memory()
    parts, events = [], []
    for first, last in ((0, cut), (cut, len(current_TB))):
        parts.append(neuron.advance(current_TB[first:last], membrane, last - first, None, memory, first))
        events.append(memory["events"].clone())
    return torch.cat(parts), torch.cat(events)


def test_a_constant_current_is_found_by_halving() -> None:
    """From 0.8: +1 at step 1; the membrane is −0.2, then −0.4, where an event of −½ corrects the mean."""
    neuron = Differential(ONE, sizes=2)
    sent, events = run(neuron, torch.full((4, 1, 1), 0.8))
    assert sent.flatten().tolist() == [0, 1, 0.5, 0.75]
    assert events.flatten().tolist() == [0, 1, 1, 0]


def test_it_is_the_recursion_of_the_paper() -> None:
    """E_in and E_out as printed; its currents carry changes, the simulation's the whole."""
    torch.manual_seed(0)
    z_TB = torch.randn(12, 64).cumsum(0)[:, :, None].abs() / 3
    sent, _ = run(Differential(ONE, sizes=4), torch.cat([torch.zeros(1, 64, 1), z_TB]))
    e_in, e_out = torch.zeros(64, 1), torch.zeros(64, 1)
    v, c, total = torch.zeros(64, 1), torch.zeros(64, 1), torch.zeros(64, 1)
    for t, z in enumerate(z_TB, start=1):
        total = total + z
        change = z - e_in  # what arrives: t·(mean(t) − mean(t − 1))
        v = v + change + e_in - e_out
        c = c + e_out
        event = torch.zeros(64, 1)
        for k in reversed(range(4)):
            event = torch.where(v >= 0.75 * 2**-k, 2.0**-k, event)
            event = torch.where((v <= -0.75 * 2**-k) & (c >= 2**-k * (1 - 1e-6)), -(2.0**-k), event)
        torch.testing.assert_close(sent[t], e_out + event)
        v, c = v - event, c + event
        e_in, e_out = e_in + change / t, e_out + event / t


def test_parts_are_one_run_and_the_mean_has_a_bound() -> None:
    current = torch.rand(9, 5, 3) * 2
    neuron = Differential(ONE, sizes=3, bound=torch.tensor(0.5))
    whole, events = run(neuron, current)
    for cut in (1, 4):
        parts, same = run(neuron, current, cut)
        assert torch.equal(parts, whole)
        assert torch.equal(same, events)
    means = whole[1:].cumsum(0) / torch.arange(1, 9)[:, None, None]
    assert means.max() <= 0.5 + 1e-5
    assert (neuron.lines, neuron(torch.tensor([[3.0]])).item()) == (6, 0.5)
