"""The largest membranes are those of a plain simulation, also in parts of a batch."""

import pytest
import torch
from torch import nn

from families import limit_memory
from hardware_examples import converted
from rheobase import simulate
from rheobase.exchange.hardware.measuring import largest_membranes
from rheobase.exchange.nir.golden import run


@pytest.mark.parametrize("samples", [4, 2, 1])
def test_membranes_are_measured(samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    snn = converted(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.ReLU(), coding=None)
    for neuron in snn.neurons.values():
        neuron.threshold.fill_(1.0)
    x = torch.rand(4, 2, 16, 16) * 3
    spikes = run(snn, x, 10)
    limit_memory(monkeypatch, snn, x, samples, steps=8)  # of ten
    assert simulate(snn, x, 10).chunk[0] == samples
    first, second = snn.sites
    expected = {}
    for site, signal in ((first, x[:, None].expand(-1, 10, -1, -1, -1)), (second, spikes[first].float())):
        layer = snn.module.get_submodule({first: "0", second: "2"}[site])
        v, largest = torch.full(spikes[site].shape[:1] + spikes[site].shape[2:], 0.5), 0.0
        for t in range(10):
            v = v + layer(signal[:, t])
            largest = max(largest, v.abs().max().item())
            v = v - spikes[site][:, t].float()
        expected[site] = max(largest, v.abs().max().item())
    assert largest_membranes(snn, [x], 10) == pytest.approx(expected, rel=1e-5)
