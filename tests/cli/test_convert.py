"""`rheobase convert`."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import rheobase
from rheobase.cli import models
from rheobase.io import save_weights
from rheobase.training.datasets.split import Dataset

Cli = Callable[..., str]


def test_the_default_is_the_packages(trained: nn.Module, cli: Cli) -> None:
    save_weights(trained, Path("w.safetensors"), {})
    assert models.method_for("small", Path("w.safetensors")) is None
    said = cli("convert", "small", "--weights", "w.safetensors")
    assert "method robust-norm" in said
    assert "start half" in said
    said = cli(
        "convert",
        "small",
        "--weights",
        "w.safetensors",
        "--method",
        "robust-norm",
        "--setting",
        "percentile=99",
    )
    assert "start zero" in said
    assert rheobase.load("snn.safetensors").provenance.settings["percentile"] == 99


@pytest.mark.parametrize("options", [("--method", "cao"), ("--coding", "poisson"), ("--coding", "tsc:8")])
def test_the_scale_of_a_coding_covers_all_images(
    trained: nn.Module, cli: Cli, options: tuple[str, ...]
) -> None:
    save_weights(trained, Path("w.safetensors"), {})
    cli("convert", "small", "--weights", "w.safetensors", *options)
    coding = rheobase.load("snn.safetensors").coding
    assert coding.scale == pytest.approx((1 - 0.2874) / 0.354, rel=1e-3)  # a white pixel of the digits
    assert "accuracy" in cli("evaluate", "snn.safetensors", "--steps", "8")


def test_an_onnx_file_from_end_to_end(trained: nn.Module, digits: Dataset, cli: Cli, tmp_path: Path) -> None:
    x = digits.test.normalise(digits.test.images[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(trained, (x,), str(tmp_path / "net.onnx"), dynamo=False, dynamic_axes={})
        odd = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.LogSigmoid(), nn.Softplus()).eval()
        torch.onnx.export(odd, (x,), str(tmp_path / "odd.onnx"), dynamo=False)
    assert "3 sites, method robust-norm, start half" in cli("convert", "net.onnx")
    cli("evaluate", "snn.safetensors", "--steps", "8", "--limit", "100", "--record", "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["evaluation"]["accuracy"][-1] > 90
    said = cli("convert", "odd.onnx", code=1)
    assert "2_Log.log (log())" in said
    assert "3_Softplus (nn.Softplus)" in said


def test_corrections_and_their_settings(trained: nn.Module, cli: Cli) -> None:
    save_weights(trained, Path("w.safetensors"), {})
    made = ("convert", "small", "--weights", "w.safetensors", "--samples", "16")
    said = cli(*made, "--then", "signed, ftbc:steps=2:rate=0.25", "--setting", "percentile=99")
    assert "method robust-norm + signed + ftbc, start half" in said
    kept = rheobase.load("snn.safetensors").provenance.settings
    assert (kept["steps"], kept["rate"], kept["base"]["base"]["percentile"]) == (2, 0.25, 99)
    said = cli(*made, "--then", "signed,ftbc", "--setting", "rate=0.25", code=1)
    assert "robust-norm" in said
    assert "--then ftbc:rate=0.25" in said
    assert "both" in cli(*made, "--then", "signed,signed", code=1)
    assert "base=opi" not in cli(*made, "--then", "signed", "--setting", "base=opi", code=1)
    chain = (*made, "--method", "max-norm+signed")
    assert "--then signed,ftbc" in cli(*chain, code=1)
    assert "--then signed,ftbc" in cli(*chain, "--then", "ftbc", "--setting", "rate=0.25", code=1)
