import pytest
import torch

from rheobase.network import SigmaDelta


@pytest.mark.parametrize("sizes", [1, 3])
def test_it_is_a_membrane_that_starts_at_half_and_takes_back_what_it_sent(sizes: int) -> None:
    torch.manual_seed(0)
    quantum, levels, steps = 0.25, 9, 60  # in units that float32 holds exactly, so that order cannot matter
    current = torch.randint(-40, 50, (steps, 1, 200)) / 64
    current[30:] = 0
    u, count, sent = torch.full((200,), 0.5), torch.zeros(200), []
    for t in range(steps):
        u += current[t, 0] / quantum
        event = torch.zeros(200)
        for q in (2**k for k in range(sizes)):
            event = torch.where((u >= q) & (count + q <= levels), q, event)
            event = torch.where((u < 1 - q) & (count >= q), -q, event)
        u, count = u - event, count + event
        sent.append(count.clone())
    neuron, membrane = SigmaDelta(torch.tensor(quantum), levels, sizes=sizes), torch.zeros(1, 200)
    neuron.amplitude = torch.ones(())
    totals = neuron.advance(current.cumsum(0), membrane, steps)
    assert torch.equal(totals[:, 0], torch.stack(sent))
    assert torch.equal(totals[-1], (current.sum(0) / quantum + 0.5).floor().clamp(0, levels))
    assert torch.equal(membrane, totals[-1])
