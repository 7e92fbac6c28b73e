"""A small network in lava-nc's fixed-point model of Loihi: all spikes are the same, changes are noticed.

Needs a Python 3.10 with lava-nc: `RHEOBASE_LAVA`, or `.venv-lava`.
"""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import fit as train
from rheobase import HALF, convert
from rheobase.exchange.hardware import check_hardware, lava
from rheobase.training import datasets

PYTHON = os.environ.get(lava.VARIABLE) or Path(__file__).parents[2] / ".venv-lava/bin/python"

pytestmark = [
    pytest.mark.skipif(
        not Path(PYTHON).is_file(),
        reason="no lava-nc: python3.10 -m venv .venv-lava && .venv-lava/bin/pip install lava-nc==0.10.0",
    ),
    pytest.mark.filterwarnings("ignore:site .* never activated"),
]


def test_every_spike_is_the_same(digits: datasets.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(lava.VARIABLE, str(PYTHON))
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()]
    model = train(nn.Sequential(*layers, nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 10)), digits.train)
    snn = convert(model, "max-norm", digits.train.take(256), initial=HALF, per_channel=True)
    result = check_hardware(snn, "loihi", digits.test.take(100), steps=12, input_bits=4)
    assert result.fits, str(result)
    assert result.simulated is not None
    assert not result.simulated.skipped, str(result)
    assert result.simulated.compared == 2 * 12 * (4 * 4 * 4 + 24)
    assert result.simulated.differing == 0

    unroll = lava._unroll

    def unroll_wrongly(*given):
        network = unroll(*given)
        network["weight1"][:, 0] += 1
        network["start1"] += 1 << lava.UNIT
        return network

    monkeypatch.setattr(lava, "_unroll", unroll_wrongly)
    wrong = check_hardware(snn, "loihi", digits.test.take(100), steps=12, input_bits=4)
    assert not wrong.fits
    assert wrong.simulated is not None
    assert wrong.simulated.differing > 0
