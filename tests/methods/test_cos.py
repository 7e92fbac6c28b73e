"""Offset spikes: layer by layer, as the authors' code computes it."""

import torch
from torch import Tensor, nn

from conftest import perceptron
from rheobase import convert, prepare, simulate
from rheobase.analysis.costs import latency_of
from rheobase.network import Rehearsed
from rheobase.simulation import Simulator


def calibrated(current_TB: Tensor, theta: float, rho: int, steps: int) -> Tensor:
    """The spikes of one layer in units of θ: a first run of ρ steps, the corrected start, the run."""
    v = torch.full_like(current_TB[0], 0.5)
    count, fired_at, silent_at = torch.zeros_like(v), torch.full_like(v, 1e9), torch.full_like(v, -1e9)
    for current in current_TB[:rho] / theta:
        u = v + current
        s = (u >= 1).float()
        fired_at = torch.where(s == 1, torch.minimum(fired_at, u), fired_at)
        silent_at = torch.where(s == 0, torch.maximum(silent_at, u), silent_at)
        v, count = u - s, count + s
    lower = (fired_at - 0.999).clamp(min=1) * ((v < 0) & (count >= 1))
    higher = (1.001 - silent_at).clamp(min=1) * ((v >= 1) & (silent_at > -1e8))
    v, spikes = 0.5 - lower.nan_to_num() + higher, []
    for current in current_TB[:steps] / theta:
        u = v + current
        spikes.append((u >= 1).float())
        v = u - spikes[-1]
    return torch.stack(spikes)


def test_it_is_the_layerwise_procedure() -> None:
    model = prepare(perceptron(3), "qcfs", start=0.5).eval().double()
    x = torch.randn(32, 24, dtype=torch.float64)
    snn = convert(model, "qcfs", then=["cos"])
    assert [(n.turn, n.turns) for n in snn.neurons.values() if isinstance(n, Rehearsed)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]
    assert snn.delay == 12
    signal_TB = x.expand(6, *x.shape)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for layer in linear[:-1]:
            signal_TB = 0.5 * calibrated(layer(signal_TB), 0.5, 4, 6).double()
        expected = linear[-1](signal_TB).cumsum(0) / torch.arange(1, 7)[:, None, None]
    run = simulate(snn, x, 18)
    assert run.at == tuple(range(13, 19))
    torch.testing.assert_close(run.logits, expected)
    assert latency_of(snn, 18).total == 18


def test_chunks_do_not_matter() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    x = torch.randn(5, 8)
    for name in ("cos", "srp", "signed", "gn"):
        snn = convert(model, "max-norm", x, then=[name])
        one, other = (Simulator(snn, x, 12, chunk=chunk, count_operations=True).run(x) for chunk in (12, 5))
        assert torch.equal(one.logits, other.logits)
        assert torch.equal(one.sop, other.sop)
