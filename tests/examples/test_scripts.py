"""The scripts, each on generated data."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import rheobase
from rheobase.analysis import accuracy
from rheobase.training import datasets

EXAMPLES = Path(__file__).parents[2] / "examples"
COLOURS = {"green": (0, 200, 40), "red": (220, 30, 0)}


def run(folder: Path, *command: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", ["RGB", "L"])
def test_image_folder(kind: str, tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 8)):
        for name, colour in COLOURS.items():
            (tmp_path / "images" / split / name).mkdir(parents=True)
            for i in range(count):
                noisy = np.clip(np.array(colour) + draws.integers(-30, 30, (40, 36, 3)), 0, 255)
                image = Image.fromarray(noisy.astype(np.uint8)).convert(kind)
                image.save(tmp_path / "images" / split / name / f"{i}.png")
    script = str(EXAMPLES / "image_folder.py")
    options = ("--epochs", "3", "--batch-size", "16", "--steps", "16")
    printed = run(tmp_path, script, "images", *options)
    assert "green, red: ANN 100.00 %" in printed
    snn = rheobase.load(tmp_path / "snn.safetensors")
    test = datasets.load(tmp_path / "images", size=32).test.to_rgb()
    result = rheobase.evaluate(snn, test, 16, progress=False)
    assert str(result) in printed
    assert result.final_accuracy == 100


def test_onnx_file(tmp_path: Path, trained: nn.Module, digits: datasets.Dataset) -> None:
    x, y = digits.test.normalise(digits.test.images[:50]), digits.test.labels[:50]
    calibration = digits.train.normalise(digits.train.images[:64])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(trained, (x[:1],), str(tmp_path / "net.onnx"), dynamo=False)
    for name, array in (("calibration", calibration), ("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array.numpy())
    arrays = ("calibration.npy", "x.npy", "y.npy")
    printed = run(tmp_path, str(EXAMPLES / "onnx_file.py"), "net.onnx", *arrays, "--steps", "8")
    assert f"ANN {accuracy(trained, (x, y)):.2f} %" in printed
    expected = rheobase.evaluate(rheobase.load(tmp_path / "snn.safetensors"), (x, y), 8, progress=False)
    assert str(expected) in printed


@pytest.mark.parametrize("count", [1, 2])
def test_several_processes_get_the_result_of_one(
    count: int, tmp_path: Path, trained: nn.Module, digits: datasets.Dataset
) -> None:
    snn = rheobase.convert(trained, calibration=digits.train.take(64))
    rheobase.save(snn, tmp_path / "snn.safetensors")
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    script = str(EXAMPLES / "several_processes.py")
    printed = run(tmp_path, *launcher, script, "snn.safetensors", "--steps", "4")
    alone = rheobase.evaluate(snn, digits.test, 4, progress=False)
    assert printed.splitlines()[0] == f"{count} processes"
    assert printed.count(str(alone)) == 1
