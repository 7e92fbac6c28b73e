"""The command line, as a user types it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rheobase.cli import main

Cli = Callable[..., str]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in an empty folder and gives what it printed, the lines joined."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, ok: bool = True) -> str:
        monkeypatch.setattr(sys, "argv", ["rheobase", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert (stop.value.code in (0, None)) == ok, printed.out + printed.err
        return " ".join((printed.out + printed.err).split())

    return run


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv=['rheobase','--help']\n"
        "from rheobase.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(
    "command",
    ["demo", "inspect", "train", "convert", "evaluate", "methods", "compare", "reproduce", "report"],
)
def test_every_command_has_an_example(command: str, cli: Cli) -> None:
    assert f"rheobase {command}" in cli(command, "--help").partition("Example:")[2]


def test_train_convert_evaluate(cli: Cli, tmp_path: Path) -> None:
    assert "weights in w.safetensors" in cli("train", "small", "--epochs", "4", "--out", "w.safetensors")
    said = cli("convert", "small", "--weights", "w.safetensors", "--initial", "half")
    assert "3 sites, method opi, start half" in said
    cli("evaluate", "snn.safetensors", "--steps", "8", "--limit", "100", "--json", "r.json")
    result = json.loads((tmp_path / "r.json").read_text())
    assert len(result["accuracy"]) == 8
    assert result["samples"] == 100
    assert result["accuracy"][-1] > 60
    said = cli(
        "compare", "small", "--weights", "w.safetensors", "--methods", "opi,max-norm,few-spikes",
        "--trained", "opi=w.safetensors", "--steps", "4,16", "--samples", "64", "--out", "c.html",
    )  # fmt: skip
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [(r["method"], r["initial"]) for r in rows][:2] == [("opi", "zero"), ("opi", "half")]
    assert all(set(r["accuracy"]) == ({"16"} if r["method"] == "few-spikes" else {"4", "16"}) for r in rows)
    assert "few-spikes: answers once, after 10 steps" in said
    assert "<svg" in (tmp_path / "c.html").read_text()


def test_inspect_says_what_refuses(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "19 sites" in cli("inspect", "resnet20")
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said = cli("inspect", "mine:build", "--shape", "1,8,8", ok=False)
    assert "REFUSED: GELU is not a ReLU" in said
    assert "replace it by nn.ReLU" in said


def test_methods_are_listed(cli: Cli) -> None:
    said = cli("methods")
    assert "opi its own training" in said
    assert "robust-norm calibration data" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convert", "smal"), "did you mean 'small'"),
        (("convert", "small"), "fresh weights"),
        (("convert", "small", "--weights", "nowhere.safetensors"), "nowhere.safetensors"),
        (("train", "small", "--data", "nowhere"), "nowhere"),
        (("train", "small", "--method", "max-nrom"), "Did you mean 'max-norm'"),
        (("evaluate", "nowhere.safetensors"), "nowhere.safetensors"),
        (("inspect", "resnet20", "--shape", "3,x"), "is not a shape"),
        (("compare", "small", "--methods", "opi,robust"), "Did you mean 'robust-norm'"),
        (("compare", "small", "--steps", "8,many"), "is not a number of steps"),
        (("compare", "small", "--initial", "halve"), "unknown initial potential"),
        (("reproduce", "opi2023", "resnet20-cifar10"), "opi2022"),
        (("report", "nowhere"), "no records"),
    ],
)
def test_mistakes_are_said_in_words(
    arguments: tuple[str, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    assert message in cli(*arguments, ok=False)
    assert not list(tmp_path.iterdir())
