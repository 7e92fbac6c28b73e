import pytest
import torch

from rheobase.network import SigmaDelta
from rheobase.network.sigma_delta import round_to_event


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_events_are_the_largest_powers_that_fit(dtype: torch.dtype) -> None:
    difference = torch.arange(-40, 41, dtype=dtype)
    for sizes in (1, 2, 4, 9):
        expected = [
            0 if d == 0 else (1 if d > 0 else -1) * max(2**k for k in range(sizes) if 2**k <= abs(d))
            for d in range(-40, 41)
        ]
        assert round_to_event(difference, sizes).tolist() == expected


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
