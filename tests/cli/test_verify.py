"""`rheobase verify` and `rheobase check-hardware`: the exit status says what was found."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import rheobase
from rheobase.io import save_weights
from rheobase.training.datasets.split import Dataset

Cli = Callable[..., str]


@pytest.fixture
def snn(trained: nn.Module, digits: Dataset, tmp_path: Path) -> rheobase.SNN:
    save_weights(trained, tmp_path / "w.safetensors", {})
    return rheobase.convert(trained, "max-norm", digits.train.take(64), initial="half")


def test_a_broken_network_fails(cli: Cli, snn: rheobase.SNN) -> None:
    command = ("verify", "snn.safetensors", "--ann", "small", "--weights", "w.safetensors")
    rheobase.save(snn, "snn.safetensors")
    assert "FAIL" not in cli(*command)
    with torch.no_grad():
        next(m for m in snn.modules() if isinstance(m, nn.Conv2d)).weight[0] += 0.5
    rheobase.save(snn, "snn.safetensors")
    said = cli(*command, code=1)
    assert "FAIL weights" in said
    assert "--weights are not the network that was converted, or there is a bug" in said


def test_the_network_in_integers_is_written(cli: Cli, snn: rheobase.SNN) -> None:
    rheobase.save(snn, "snn.safetensors")
    command = ("check-hardware", "snn.safetensors", "--target", "generic-int8", "--steps", "4")
    units = []
    for bits in ("8", "3"):
        said = cli(*command, "--samples", "50", "--out", "q.safetensors", "--input-bits", bits)
        assert "in integers" in said
        assert "arithmetic): fits" in said
        units += re.findall(r"q\.safetensors.* inputs .* multiples of ([\d.]+)", said)
    fine, coarse = map(float, units)
    assert 0 < fine < coarse
    assert rheobase.load("q.safetensors").sites == snn.sites


def test_the_sum_code_has_no_file_of_integers(cli: Cli, trained: nn.Module, digits: Dataset) -> None:
    rheobase.save(rheobase.convert(trained, "sigma-delta", digits.train.take(64)), "snn.safetensors")
    command = ("check-hardware", "snn.safetensors", "--steps", "2", "--samples", "20", "--target")
    assert "): fits" in cli(*command, "loihi-2")
    assert "does not fit" in cli(*command, "loihi", code=1)
    said = cli(*command, "loihi-2", "--out", "q.safetensors", code=1)
    assert "q.safetensors" in said
    assert "profile int8" in said
    assert not Path("q.safetensors").exists()
