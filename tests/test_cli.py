"""The command line, as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160", "NO_COLOR": "1"}


def rheobase(*arguments: str, cwd: Path, ok: bool = True) -> str:
    run = subprocess.run(
        [sys.executable, "-c", "from rheobase.cli import main; main()", *arguments],
        cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (run.returncode == 0) == ok, run.stdout + run.stderr
    assert "Traceback" not in run.stderr
    return run.stdout + run.stderr


def test_help_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv=['rheobase','--help']\n"
        "from rheobase.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=ENVIRONMENT)
    for command in ("demo", "inspect", "train", "convert", "evaluate", "methods"):
        assert f"rheobase {command}" in rheobase(command, "--help", cwd=tmp_path)


def test_train_convert_evaluate(tmp_path: Path) -> None:
    said = rheobase("train", "small", "--epochs", "4", "--out", "w.safetensors", cwd=tmp_path)
    assert "weights in w.safetensors" in said
    said = rheobase("convert", "small", "--weights", "w.safetensors", "--initial", "half", cwd=tmp_path)
    assert "3 sites, method opi, start half" in said
    rheobase(
        "evaluate", "snn.safetensors", "--steps", "8", "--limit", "100", "--json", "r.json", cwd=tmp_path
    )
    result = json.loads((tmp_path / "r.json").read_text())
    assert len(result["accuracy"]) == 8
    assert result["samples"] == 100
    assert result["accuracy"][-1] > 60


def test_inspect_says_what_refuses(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 3))\n"
    )
    assert "19 sites" in rheobase("inspect", "resnet20", cwd=tmp_path)
    environment = dict(ENVIRONMENT)
    ENVIRONMENT["PYTHONPATH"] = str(tmp_path)
    try:
        said = rheobase("inspect", "mine:build", "--shape", "1,8,8", cwd=tmp_path, ok=False)
    finally:
        ENVIRONMENT.clear()
        ENVIRONMENT.update(environment)
    assert "REFUSED: GELU is not a ReLU" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "smal"), "did you mean 'small'"),
        (("convert", "small"), "fresh weights"),
        (("convert", "small", "--weights", "nowhere.safetensors"), "nowhere.safetensors"),
        (("train", "small", "--data", "nowhere"), "nowhere"),
        (("train", "small", "--method", "opl"), "Did you mean 'opi'"),
        (("evaluate", "nowhere.safetensors"), "nowhere.safetensors"),
        (("inspect", "resnet20", "--shape", "3,x"), "is not a shape"),
    ],
)
def test_mistakes_are_said_in_words(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    assert message in " ".join(rheobase(*arguments, cwd=tmp_path, ok=False).split())
    assert not list(tmp_path.iterdir())
