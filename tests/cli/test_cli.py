"""The command line, as a user types it."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rheobase
from rheobase import methods as registry
from rheobase import papers
from rheobase.analysis import comparison
from rheobase.cli import COMMANDS, console, main, measuring
from rheobase.cli import models as cli_models
from rheobase.papers import records
from rheobase.papers.candidates import Candidate
from rheobase.training import datasets, models
from rheobase.training.datasets.split import Dataset, Split
from rheobase.training.recipe import RECIPES

Cli = Callable[..., str]


@contextmanager
def interrupted_after(batch: int) -> Iterator[None]:
    """Somebody presses Ctrl-C when so many batches are done."""
    batches = Split.batches

    def pressing(split: Split, size: int) -> Iterator[Any]:
        for number, given in enumerate(batches(split, size)):
            if number == batch:
                signal.raise_signal(signal.SIGINT)
            yield given

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Split, "batches", pressing)
        yield


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in an empty folder and gives what it printed, the lines joined."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: str, ok: bool = True, code: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["rheobase", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        assert (stop.value.code or 0) == (code if ok else 1), printed.out + printed.err
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


def examples(command: Callable[..., None]) -> list[list[str]]:
    """The commands that a help shows, word by word."""
    shown = (command.__doc__ or "").partition("Example:")[2]
    return [shlex.split(example) for example in re.findall(r"`(rheobase [^`]*)`", shown)]


@pytest.mark.parametrize("command", [c for group in COMMANDS.values() for c in group])
def test_every_command_has_examples(command: Callable[..., None], cli: Cli) -> None:
    assert examples(command)
    assert {words[1] for words in examples(command)} == {command.__name__}
    assert f"rheobase {command.__name__}" in cli(command.__name__, "--help").partition("Example:")[2]


ELSEWHERE = ("demo", "reproduce", "report results", "verify net.nir", "bench vgg16")
"""Examples that need minutes, data, a GPU or other packages, and have tests of their own."""


@pytest.mark.parametrize(("lose", "loss"), [(None, 0.2), (0.0, 0.0)])
def test_an_exit_is_fitted_in_the_arithmetic_that_runs(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, lose: float | None, loss: float
) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(rheobase, "fit_exit", lambda *_, **settings: told.update(settings))
    measuring._fit(None, digits, "margin", 4, "int8", lose)
    assert told == {"steps": 4, "loss": loss, "profile": "int8"}


@pytest.mark.filterwarnings("ignore:site .* never activated")
def test_examples_work_as_printed(
    cli: Cli, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(digits, train=digits.train.take(400), test=digits.test.take(100))
    monkeypatch.setattr(datasets, "load", lambda name, root: few)
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], epochs=8))
    monkeypatch.setattr(registry, "names", lambda: ["max-norm", "opi", "robust-norm"])
    order = ["train", "convert", "evaluate", "diagnose"]
    commands = sorted(
        (c for group in COMMANDS.values() for c in group),
        key=lambda c: order.index(c.__name__) if c.__name__ in order else len(order),
    )
    said = {}
    for words in (words for command in commands for words in examples(command)):
        if not " ".join(words[1:]).startswith(ELSEWHERE):
            said[" ".join(words[1:3])] = cli(*words[1:])
    assert "weights in runs/digits.safetensors" in said["train small"]
    assert "start half" in said["convert small"]
    assert "spared:" in said["evaluate snn.safetensors"]
    assert "quantisation" in said["diagnose small"]
    assert "best.safetensors" in said["advise small"]
    assert "everything holds" in said["verify snn.safetensors"]
    assert "not run in lava-nc's fixed-point model" in said["fit snn.safetensors"]
    assert "as the grid rounds its weights" in said["export snn.safetensors"]
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written >= {
        "snn.safetensors", "best.safetensors", "net.nir", "net.golden.nir", "compare.html", "compare.json",
        "evaluate.html", "evaluate.json", "diagnose.html", "diagnose.json", "runs.html",
    }  # fmt: skip


def test_train_convert_evaluate(cli: Cli, tmp_path: Path) -> None:
    assert "weights in one.safetensors" in cli("train", "small", "--epochs", "1", "--out", "one.safetensors")
    assert "weights in w.safetensors" in cli("train", "small", "--epochs", "4", "--out", "w.safetensors")
    said = cli("convert", "small", "--weights", "w.safetensors", "--initial", "half")
    assert "3 sites, method opi, start half" in said
    said = cli(
        "evaluate", "snn.safetensors", "--steps", "8", "--limit", "100", "--record", "r.json",
        "--ann", "small", "--weights", "w.safetensors",
    )  # fmt: skip
    result = json.loads((tmp_path / "r.json").read_text())
    # Of 100 images a whole number is right, of all 360 it would not be.
    assert result["ann_accuracy"] == round(result["ann_accuracy"])
    assert f"The network before conversion: {result['ann_accuracy']:.2f} %." in said
    assert len(result["evaluation"]["accuracy"]) == 8
    assert result["evaluation"]["samples"] == 100
    assert result["evaluation"]["accuracy"][-1] > 60
    assert result["ann_accuracy"] > 60
    assert result["command"].startswith("rheobase evaluate snn.safetensors")
    with interrupted_after(2):
        said = cli("evaluate", "snn.safetensors", "--steps", "2", "--record", "part.json", code=130)
    assert "stopped after 200 of 360 images" in said
    part = json.loads((tmp_path / "part.json").read_text())
    assert part["evaluation"]["samples"] == 200
    assert "stopped after 200 of 360" in part["title"]
    with interrupted_after(2):
        cli(
            "evaluate",
            "snn.safetensors",
            "--steps",
            "2",
            "--exit",
            "margin",
            "--lose",
            "50",
            "--record",
            "part.json",
            code=130,
        )
    part = json.loads((tmp_path / "part.json").read_text())
    assert (part["evaluation"]["samples"], part["exit"]) == (200, "")  # nobody left early yet
    with interrupted_after(0):
        assert "percent right" not in cli("evaluate", "snn.safetensors", "--steps", "2", code=130)
    said = cli(
        "compare", "small", "--weights", "w.safetensors", "--methods", "opi,max-norm,few-spikes",
        "--steps", "4,16", "--samples", "64", "--out", "c.html",
    )  # fmt: skip
    rows = json.loads((tmp_path / "c.json").read_text())["rows"]
    assert [(r["method"], r["initial"]) for r in rows][:2] == [("opi", "zero"), ("opi", "half")]
    assert all(set(r["accuracy"]) == ({"16"} if r["method"] == "few-spikes" else {"4", "16"}) for r in rows)
    assert "few-spikes: answers once, after 10 steps" in said
    assert "energy are those of one image over its whole run" in said  # few-spikes ran for 10 steps, not 16
    assert "<svg" in (tmp_path / "c.html").read_text()


def test_images_of_ones_own_from_end_to_end(cli: Cli, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for place in ("train", "test"):
        for name, colour in (("dark", 40), ("bright", 200)):
            folder = tmp_path / "my images" / place / name
            folder.mkdir(parents=True)
            for i in range(40):
                image.new("RGB", (12, 12), (colour + i, colour, colour - i)).save(folder / f"{i}.png")
    train = ("train", "small", "--data", "my images", "--epochs", "2", "--out", "w.safetensors")
    assert "there is no recipe for small on my images: name one by --recipe" in cli(*train, ok=False)
    assert "weights in w.safetensors" in cli(*train, "--recipe", "digits")
    given = ("--data", "my images", "--weights", "w.safetensors")
    assert "3 sites" in cli("convert", "small", *given)
    cli("evaluate", "snn.safetensors", "--data", "my images", "--steps", "2")
    fresh = cli("diagnose", "small", "--data", "my images", ok=False)
    assert "there is no quick training on my images: pass --weights" in fresh
    advice = ("advise", "small", *given, "--steps", "4", "--samples", "40", "--out", "best.safetensors")
    said = re.search(r"`(rheobase evaluate .*?)`", cli(*advice))
    assert said is not None
    cli(*shlex.split(said[1])[1:])
    assert "converted for inputs of (3, 12, 12)" in cli("evaluate", "snn.safetensors", ok=False)


def test_what_was_measured_is_written_before_it_is_shown(
    trained: nn.Module, digits: Dataset, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rheobase.save(rheobase.convert(trained, "max-norm", digits.train.take(50)), "snn.safetensors")

    def break_off(*_: object) -> None:
        raise BrokenPipeError(32, "nobody listens")

    monkeypatch.setattr(console, "show", break_off)
    cli("evaluate", "snn.safetensors", "--steps", "2", "--limit", "20", "--record", "r.json", ok=False)
    assert json.loads((tmp_path / "r.json").read_text())["evaluation"]["samples"] == 20


@pytest.mark.parametrize("closed", ["", ">&- 2>&-"])
def test_a_command_works_without_a_terminal_and_its_letters(
    trained: nn.Module, digits: Dataset, tmp_path: Path, closed: str
) -> None:
    rheobase.save(rheobase.convert(trained, "max-norm", digits.train.take(50)), tmp_path / "snn.safetensors")
    command = shlex.join([sys.executable, "-m", "rheobase.cli", "evaluate", "snn.safetensors"])
    options = "--steps 2 --limit 20 --record é.json"
    done = subprocess.run(
        f"{command} {options} {closed}",
        shell=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "é.json").exists()
    assert (b" ?J" in done.stdout) == (closed != ">&- 2>&-")


def test_numbers_are_not_cut_on_a_narrow_terminal(
    trained: nn.Module, digits: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")  # which makes it a terminal
    monkeypatch.setenv("TERM", "xterm")
    snn = rheobase.convert(trained, "max-norm", digits.train.take(50))
    found = rheobase.evaluate(snn, digits.test.take(20), 4, progress=False)
    console.show({"half": found})
    assert f"{found.accuracy[-1]:.1f}" in (shown := capsys.readouterr().out)
    assert "…" not in shown


def test_a_built_in_network_is_made_for_the_shape(cli: Cli) -> None:
    assert "3 sites" in cli("inspect", "small", "--shape", "2,16,16")
    assert "multiple of 32, got 40" in cli("inspect", "vgg16", "--shape", "3,40,40", ok=False)


def test_warnings_are_said_in_words(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheobase.papers import reproduction

    def reproduce(*_: object, **__: object) -> list[records.Record]:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("rnl is left out", stacklevel=1)
        return []

    monkeypatch.setattr(reproduction, "reproduce", reproduce)
    assert "warning: rnl is left out" in (said := cli("reproduce", "opi2022", "vgg16-cifar10"))
    assert "UserWarning" not in said


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
    (tmp_path / "gates.py").write_text(
        "from torch import nn\nclass Gates(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.swish = nn.Hardswish()\n"
        "    def forward(self, x):\n        x = nn.functional.silu(x)\n        return self.swish(x)\n"
    )
    said = cli("inspect", "gates:Gates", "--shape", "3", ok=False)
    handlers = [name for name in registry.names() if "silu" in registry.find(name).handles]
    assert handlers
    assert f"convert by {' or '.join(handlers)}, which has a neuron for it" in said
    assert "gates.py:7" in said
    assert said.count("which has a neuron for it") == 1  # hard-swish has none
    assert "gates.py:8" in said
    with pytest.raises(ValueError, match=r"silu \(silu\(\), .*gates.py:7\): silu is not a ReLU"):
        rheobase.convert(models.build("gates:Gates"), "max-norm", torch.rand(4, 3))


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
        (("train", "small", "--method", "max-nrom"), "did you mean 'max-norm'"),
        (("evaluate", "nowhere.safetensors"), "nowhere.safetensors"),
        (("inspect", "resnet20", "--shape", "3,x"), "is not a shape"),
        (("inspect", "resnet20", "--shape", "1,8,8"), "the shape is that of --shape 1,8,8"),
        (
            ("train", "resnet20", "--data", "digits"),
            "resnet20 does not take the images of digits, which are 1×8×8",
        ),
        (("evaluate", "s.safetensors", "--weights", "w.safetensors"), "name it by --ann"),
        (("diagnose", "small", "--network", "s.safetensors", "--initial", "half"), "leave --initial out"),
        (("diagnose", "small", "--page", "d.html", "--record", "./d.html"), "give each a file of its own"),
        (("advise", "small", "--steps", "4", "--out", "x", "--record", "x"), "give each a file of its own"),
        (
            ("convert", "small", "--weights", "w.safetensors", "--out", "w.safetensors"),
            "named for two things",
        ),
        (("fit", "s.safetensors", "--target", "loihi", "--no-quantise", "--out", "q"), "leave it out"),
        (("reproduce", "opi2022", "vgg16-cifar10", "--tuning", "a=1", "--tuning", "a=2"), "a is set twice"),
        (("compare", "small", "--methods", "opi,,tcl"), "is no list of names"),
        (("report", ".", "--out", __file__), "is a file: give a folder"),
        (("demo", "--out", __file__), "is a file: give a folder"),
        (("report", "run.json", "--out", "."), "is a folder: give the name of a file"),
        (("bench", "resnet20", "--shape", "1,8,8", "--batch", "2"), "the shape is that of --shape 1,8,8"),
        (("train", "small", "--out", "w.checkpoint"), "give the weights another name, as w.safetensors"),
        (("compare", "small", "--methods", "opi,robust"), "did you mean 'robust-norm'"),
        (("compare", "small", "--steps", "8,many"), "is not a number of steps"),
        (("compare", "small", "--steps", "0"), "is not a number of steps"),
        (("compare", "small", "--out", "compare.json"), "give the page another name"),
        (("compare", "small", "--trained", "opj=runs/d.safetensors"), "runs/d.safetensors"),
        (("compare", "small", "--trained", "opi=a", "--trained", "opi=b"), "opi is set twice, to a and b"),
        (("evaluate", "s.safetensors", "--lose", "0.5"), "say by --exit when an image leaves"),
        (("inspect", "resnet20", "--shape", "-1,8,8"), "is not a shape"),
        (("train", "small", "--out", "."), "is a folder: give the name of a file"),
        (("evaluate", "snn.safetensors", "--page", "."), "is a folder: give the name of a file"),
        (("evaluate", "snn.safetensors", "--record", f"{__file__}/x.json"), "cannot be written"),
        (("advise", "small"), "--lose POINTS"),
        (("export", "nowhere.safetensors", "net.nir"), "nowhere.safetensors"),
        (("verify", "net.nir"), "--in SIMULATOR"),
        (("verify", "net.nir", "--in", "abacus"), "norse, sinabs, snntorch, spikingjelly"),
        (("fit", "nowhere.safetensors", "--target", "loihi"), "nowhere.safetensors"),
        (("report", "nowhere.json"), "nowhere.json"),
        (("convert", "nowhere.onnx"), "there is no file nowhere.onnx"),
        (("compare", "small", "--initial", "halve"), "unknown initial potential"),
        (("reproduce", "opi2023", "resnet20-cifar10"), "opi2022"),
        (("reproduce", "opi2023"), "opi2022"),
        (("reproduce", "opi2022", "vgg16-cifar10", "--cell", "vgg16-cifar10"), "given twice"),
        (("reproduce", "opi2022", "resnet20-cifar10", "--study", "--chosen"), "leave --chosen out"),
        (("reproduce", "opi2022", "resnet20-cifar10", "--candidate", "own"), "tried by --study"),
        (("reproduce", "opi2022", "resnet20-cifar10", "--study", "--candidate", "2"), "is no candidate"),
        (("reproduce", "opi2022", "resnet20-cifar10", "--tuning", "epochs"), "not of the form name=value"),
        (("reproduce", "opi2022", "resnet20-cifar10", "--methods", "max-nrom"), "did you mean 'max-norm'"),
        (("reproduce", "opi2022", "resnet20-cifar10", "--profile", "faster"), "exact, fast, int8"),
        (("report", "nowhere"), "there is no folder nowhere"),
        (("report", "."), "no records"),
    ],
)
def test_mistakes_are_said_in_words(
    arguments: tuple[str, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    assert message in cli(*arguments, ok=False)
    assert not list(tmp_path.iterdir())


def test_what_reproduce_is_told_is_handed_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheobase.papers import reproduction

    calls: list[tuple[str, dict[str, Any]]] = []
    for verb in ("reproduce", "select"):
        monkeypatch.setattr(
            reproduction, verb, lambda *_, verb=verb, **told: calls.append((verb, told)) or []
        )
    cell = ("reproduce", "opi2022", "resnet20-cifar10", "--seed", "3", "--runs", "kept", "--results", "out")
    cli(
        *cell, "--parts", "methods,tuned", "--trained-for", "tcl", "--profile", "fast",
        "--methods", "rmp,tsc", "--tuning", "epochs=2", "--tuning", "rate=0.5", "--chosen", "--pretrained",
    )  # fmt: skip
    tried = ("--candidate", "own", "--candidate", "start=2")
    assert "--chosen" in cli(*cell, "--study", *tried, "--profile", "fast", "--epochs", "5")
    training = {"folder": Path("out"), "runs": Path("kept"), "seed": 3, "limit": None, "device": None}
    assert calls == [
        (
            "reproduce",
            training
            | {"epochs": None, "parts": ["methods", "tuned"], "steps": None, "profile": "fast"}
            | {"names": ["rmp", "tsc"], "tuning": {"epochs": 2, "rate": 0.5}}
            | {"trained_for": "tcl", "chosen": True, "pretrained": True},
        ),
        (
            "select",
            training | {"epochs": 5, "profile": "fast", "candidates": [Candidate(), Candidate(start=2.0)]},
        ),
    ]


def test_without_a_network_reproduce_lists_them(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from rheobase.papers import reproduction

    text = cli("reproduce", "opi2022", "--results", str(Path(__file__).parents[2] / "results"))
    assert all(f"{cell.name} {cell.title}, {cell.table};" in text for cell in papers.get("opi2022").cells)
    assert cli("reproduce", "opi2022").count("not measured") == len(papers.get("opi2022").cells)
    measured = records.load_all(Path(__file__).parents[2] / "results")
    whole = next(r for r in measured if (r.table, r.model) == ("table 1", "resnet18"))
    records.write(whole, "whole")
    said = cli("reproduce", "opi2022", "--results", "whole")
    assert "ResNet-18 on CIFAR-10, table 1; measured for table 1 in whole" in said
    records.write(replace(whole, shortened=("trained for 1 epochs instead of 300",)), "trial")
    said = cli("reproduce", "opi2022", "--results", "trial")
    assert "ResNet-18 on CIFAR-10, table 1; only tried, in runs that were cut, in trial" in said
    asked: list[str] = []
    monkeypatch.setattr(reproduction, "reproduce", lambda *words, **_: asked.extend(words) or [])
    cli("reproduce", "opi2022", "--cell", "vgg16-cifar10")
    assert asked[:2] == ["opi2022", "vgg16-cifar10"]


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "rheobase.cli", "--help"]
    assert "reproduce" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_an_interrupted_comparison_keeps_its_rows(
    trained: nn.Module, digits: Dataset, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, count = comparison.evaluate, 0

    def pressing(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    monkeypatch.setattr(comparison, "evaluate", pressing)
    data = digits.train.take(40)
    found = rheobase.compare(trained, data, data, methods=["max-norm"], steps=[2], progress=False)
    assert [row.steps for row in found.rows] == [2, 0]
    assert found.rows[1].note == comparison.STOPPED
    count = 1
    with pytest.raises(KeyboardInterrupt):
        rheobase.compare(trained, data, data, methods=["max-norm"], steps=[2], progress=False)
    monkeypatch.setattr(cli_models, "load_or_train", lambda *_: trained)
    count = 0
    said = cli("compare", "small", "--methods", "max-norm", "--steps", "2", code=130)
    assert f"max-norm: {comparison.STOPPED}" in said


def test_an_onnx_file_from_end_to_end(trained: nn.Module, digits: Dataset, cli: Cli, tmp_path: Path) -> None:
    x = digits.test.normalise(digits.test.images[:2])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(trained, (x,), str(tmp_path / "net.onnx"), dynamo=False, dynamic_axes={})
        odd = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.LogSigmoid()).eval()
        torch.onnx.export(odd, (x,), str(tmp_path / "odd.onnx"), dynamo=False)
    said = cli("convert", "net.onnx", "--initial", "half")
    assert "3 sites, method robust-norm, start half" in said
    cli("evaluate", "snn.safetensors", "--steps", "8", "--limit", "100", "--record", "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["evaluation"]["accuracy"][-1] > 90
    said = cli("convert", "odd.onnx", ok=False)
    assert "/2/Log (Log)" in said
    assert "/2/Sigmoid (Sigmoid): Sigmoid is not a ReLU" in said


@pytest.mark.parametrize(
    "command", [["bench", "small"], ["train", "small"], ["reproduce", "opi2022", "vgg16-cifar10"]]
)
def test_a_device_that_is_not_there_is_said_first(cli: Cli, command: list[str]) -> None:
    printed = cli(*command, "--device", "abacus", ok=False)
    assert "cannot use the device 'abacus' here" in printed
    assert "leave --device out" in printed
