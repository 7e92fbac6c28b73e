"""Trainable clipping."""

import pytest
import torch
from torch import nn

from rheobase import convert, prepare
from rheobase.network import Clip


@pytest.mark.parametrize("name", ["tcl", "opi"])
def test_thresholds_are_the_trained_clips(name: str) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU6(), nn.Linear(4, 2))
    prepared = prepare(model, name, start=7.0)
    clips = [module for module in prepared.modules() if isinstance(module, Clip)]
    assert [clip.threshold.item() for clip in clips] == [7.0, 6.0]  # at most what the activation can give
    nn.init.constant_(clips[0].threshold, 1.5)
    snn = convert(prepared.eval(), name)
    assert [neuron.threshold.item() for neuron in snn.neurons.values()] == [1.5, 6.0]
    x = 3 * torch.randn(16, 3)
    torch.testing.assert_close(snn.limit(x), prepared(x))


def test_a_network_without_clips_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with pytest.raises(ValueError, match=r"'1'.*Rectifier.*prepare\(model, 'tcl'\)"):
        convert(model, "tcl")
