"""The command line as a whole: its commands and options, its help, its examples and its errors."""

import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from torch import nn

import rheobase
from rheobase import methods as registry
from rheobase.cli import COMMANDS, app
from rheobase.io import save_weights
from rheobase.papers import reproduction
from rheobase.training import datasets
from rheobase.training.datasets.split import Dataset
from rheobase.training.recipe import RECIPES

Cli = Callable[..., str]
FUNCTIONS = [command for group in COMMANDS.values() for command in group]

COMMAND_LINE = """
advise MODEL --weights IMAGES --lose --steps --microjoules --lines --samples --seed --out --record
bench MODEL --shape --steps --batch-size --repeats --record --device
check-hardware NETWORK --target --quantise/--no-quantise IMAGES --steps --samples --input-bits --out
compare MODEL --weights IMAGES --methods --starts --steps --coding --trained --samples --out
convert MODEL --weights --random-weights IMAGES --method --then --initial --coding --out --samples --setting
demo --out --data --root
diagnose MODEL --weights IMAGES --method --initial --setting --network --steps --samples \
--remedies/--no-remedies --page --record
evaluate NETWORK IMAGES --steps --exit --lose --ann --weights --profile --batch-size --limit --page \
--record --device
export NETWORK OUT IMAGES --weights --pools --steps --samples
inspect MODEL --shape --classes --method
methods
report RESULTS --out
reproduce PAPER CELL --parts --rows --study --candidate --chosen --pretrained --trained-for --methods \
--tuning --profile --seed --epochs --limit --size --steps --deterministic --results --runs --root --device
train MODEL IMAGES --method --setting --recipe --out --epochs --seed --device
verify NETWORK --in --ann --weights IMAGES
"""
"""All commands and options, IMAGES for those that choose data: a change here is a change for users."""


def test_the_command_line_is_as_listed() -> None:
    lines = []
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        words = [
            "/".join([*p.opts, *p.secondary_opts]) if p.opts[0].startswith("-") else str(p.name).upper()
            for p in command.params
            if p.name != "help"
        ]
        lines.append(" ".join([name, *words]).replace("--data --root --size --mean --std", "IMAGES"))
    assert lines == COMMAND_LINE.strip().split("\n")


def test_the_help_needs_no_torch() -> None:
    code = (
        "import sys; sys.argv=['rheobase','--help']\n"
        "from rheobase.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_version(cli: Cli) -> None:
    assert cli("--version") == f"rheobase {rheobase.__version__}"


@pytest.mark.parametrize(
    "command", ["bench small --shape 1,8,8 --steps 2 --repeats 1 --batch-size 2", "advise small --steps 1"]
)
def test_records_without_a_page_are_explained(
    cli: Cli, command: str, trained: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_weights(trained, "w.safetensors")
    monkeypatch.setattr(registry, "names", lambda: ["robust-norm"])
    words = [*command.split(), *(["--weights", "w.safetensors"] if "advise" in command else [])]
    cli(*words, "--record", "r.json")
    assert f"rheobase {words[0]}" in cli("report", "r.json", code=1)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("module", ["rheobase", "rheobase.cli"])
def test_the_package_is_a_command(module: str) -> None:
    command = [sys.executable, "-m", module, "--help"]
    assert "reproduce" in subprocess.run(command, check=True, capture_output=True, text=True).stdout


def examples(command: Callable[..., None]) -> list[list[str]]:
    """The commands that a help shows, word by word."""
    shown = (command.__doc__ or "").partition("Example")[2]
    return [shlex.split(example) for example in re.findall(r"`(rheobase [^`]*)`", shown)]


@pytest.mark.parametrize("command", FUNCTIONS)
def test_every_command_has_examples(command: Callable[..., None], cli: Cli) -> None:
    name = command.__name__.replace("_", "-")
    assert {words[1] for words in examples(command)} == {name}
    shown = cli(name, "--help").partition("Example")[2]
    assert f"rheobase {name}" in shown
    assert len(examples(command)) == 1 or shown.count(f"• rheobase {name}") == len(examples(command))


ELSEWHERE = ("demo", "reproduce", "report results", "verify net.nir", "bench vgg16")
"""Examples that need minutes, data, a GPU or other packages, and have tests of their own."""


@pytest.mark.filterwarnings("ignore:site .* never activated")
def test_examples_work_as_printed(
    cli: Cli, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(digits, train=digits.train.take(700), test=digits.test.take(100))
    monkeypatch.setattr(datasets, "load", lambda name, root, size: few)
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], epochs=8))
    monkeypatch.setattr(registry, "names", lambda: ["max-norm", "opi", "robust-norm"])
    order = ["train", "convert", "evaluate", "diagnose"]
    commands = sorted(FUNCTIONS, key=lambda c: order.index(c.__name__) if c.__name__ in order else len(order))
    said = {}
    for words in (words for command in commands for words in examples(command)):
        if not " ".join(words[1:]).startswith(ELSEWHERE):
            name = " ".join(words[1:3])
            said[name] = said.get(name, "") + cli(*words[1:])
    assert "runs/digits.safetensors" in said["train small"]
    assert "runs/small-digits-qcfs.safetensors" in said["train small"]
    assert "start half" in said["convert small"]
    assert "saved:" in said["evaluate snn.safetensors"]
    assert "quantisation" in said["diagnose small"]
    assert "best.safetensors" in said["advise small"]
    assert "all checks passed" in said["verify snn.safetensors"]
    assert "lava-nc" in said["check-hardware snn.safetensors"]
    assert "fits" in said["check-hardware snn.safetensors"]
    assert "eight bits" in said["export snn.safetensors"]
    written = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert written >= {
        "snn.safetensors", "best.safetensors", "net.nir", "net.golden.nir", "compare.html", "compare.json",
        "evaluate.html", "evaluate.json", "diagnose.html", "diagnose.json", "runs.html",
    }  # fmt: skip


CELL = "opi2022 resnet20-cifar10"


@pytest.mark.parametrize(
    ("command", "facts"),
    [
        ("advise small", "--lose, --steps or --microjoules"),
        ("advise small --steps 4 --out x.safetensors --record x.safetensors", "x.safetensors is given twice"),
        ("bench resnet20 --shape 1,8,8 --batch-size 2", "--shape, not 1,8,8"),
        ("check-hardware nowhere.safetensors --target loihi", "nowhere.safetensors"),
        (
            "check-hardware s.safetensors --target loihi --no-quantise --out q.safetensors",
            "leave out --out or",
        ),
        ("compare small --methods opi,,tcl", "'opi,,tcl' is not a list of names"),
        ("compare small --methods opi,robust", "did you mean 'robust-norm'"),
        ("compare small --out compare.json", "compare.html"),
        ("compare small --starts halve", "halve"),
        ("compare small --steps 0", "'0' is not a list of steps"),
        ("compare small --steps 8,many", "'8,many' is not a list of steps"),
        ("compare small --trained opi=a --trained opi=b", "opi is set twice, to a and b"),
        ("compare small --trained opi=runs/d.safetensors", "runs/d.safetensors"),
        ("compare small --trained opj=runs/d.safetensors", "'opj'"),
        ("convert nowhere.onnx", "nowhere.onnx"),
        ("convert snn.safetensors", "--weights"),
        ("convert smal", "did you mean 'small'"),
        ("convert small", "--random-weights"),
        ("convert small --mean a", "'a' is not a list of numbers"),
        ("convert small --mean 1,2 --random-weights", "(1.0, 2.0)"),
        ("convert small --size 9", "digits has its own size"),
        ("convert small --weights w.safetensors --random-weights", "w.safetensors"),
        ("convert small --weights nowhere.safetensors", "nowhere.safetensors"),
        ("convert small --weights w.safetensors --out w.safetensors", "w.safetensors is given twice"),
        ("convert net.onnx --out net.onnx", "call it net.safetensors"),
        ("compare small --trained opi=w.html --out w.html", "w.html is given twice"),
        (f"demo --out {__file__}", "give a folder"),
        ("diagnose small --network s.safetensors --initial half", "leave out --initial or --network"),
        ("diagnose small --page d.html --record ./d.html", "d.html is given twice"),
        ("evaluate nowhere.safetensors", "nowhere.safetensors"),
        ("evaluate s.safetensors --lose 0.5", "--exit"),
        ("evaluate s.safetensors --page .", "is a folder"),
        ("evaluate s.safetensors --page x.txt", "call it x.html"),
        (f"evaluate s.safetensors --record {__file__}/x.json", "cannot be written"),
        ("evaluate s.safetensors --weights w.safetensors", "--ann"),
        ("export net.golden.nir net.nir", "net.golden.nir is given twice"),
        ("export nowhere.safetensors net.nir", "nowhere.safetensors"),
        ("inspect resnet20 --shape -1,8,8", "'-1,8,8' is not a shape"),
        ("inspect resnet20 --shape 1,8,8", "--shape, not 1,8,8"),
        ("inspect resnet20 --shape 3,x", "'3,x' is not a shape"),
        ("inspect vgg16 --shape 3,40,40", "32, got 40"),
        ("report .", "no records"),
        (f"report . --out {__file__}", "give a folder"),
        ("report nowhere", "no folder nowhere"),
        ("report nowhere.json", "nowhere.json"),
        ("report run.json --out .", "is a folder"),
        ("report run.json --out run.json", "call it run.html"),
        ("reproduce opi2023", "opi2022"),
        ("reproduce opi2023 resnet20-cifar10", "opi2022"),
        (f"reproduce {CELL} --candidate own", "--study"),
        (f"reproduce {CELL} --methods max-nrom", "did you mean 'max-norm'"),
        (f"reproduce {CELL} --profile faster", "exact, fast, int8"),
        (f"reproduce {CELL} --study --candidate 2", "2"),
        (f"reproduce {CELL} --study --chosen all", "leave out --chosen"),
        (f"reproduce {CELL} --rows --methods rmp", "leave out --methods"),
        (f"reproduce {CELL} --tuning a=1 --tuning a=2", "a is set twice, to 1 and 2"),
        (f"reproduce {CELL} --tuning epochs", "name=value"),
        ("train resnet20 --data digits", "1×8×8"),
        ("train small --data nowhere", "nowhere"),
        ("train small --method max-nrom", "did you mean 'max-norm'"),
        ("train small --out .", "is a folder"),
        ("train small --out d.onnx", "call it d.safetensors"),
        ("train small --out w.checkpoint", "call it w.safetensors"),
        ("verify net.nir", "--in SIMULATOR"),
        ("verify net.nir --in abacus", "norse, sinabs, snntorch, spikingjelly"),
    ],
)
def test_a_mistake_is_an_error_that_writes_nothing(
    command: str, facts: str, cli: Cli, tmp_path: Path
) -> None:
    assert facts in cli(*command.split(), code=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["bench small", "train small", f"reproduce {CELL}"])
def test_a_missing_device_is_reported_first(cli: Cli, command: str) -> None:
    printed = cli(*command.split(), "--device", "abacus", code=1)
    assert "'abacus'" in printed
    assert "leave --device out" in printed


@pytest.mark.parametrize(
    "words", [["train", "small", "--data", ""], ["demo", "--data", ""], ["convert", "small", "--then", ""]]
)
def test_an_empty_name_is_not_the_default(cli: Cli, words: list[str], tmp_path: Path) -> None:
    assert "empty" in cli(*words, code=1)
    assert not list(tmp_path.rglob("*.*"))


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(27, "File too large"), "error: File too large"),
        (FileNotFoundError(2, "No such file", "a.png"), "error: a.png: No such file"),
        (FileNotFoundError("there is nothing at a"), "error: there is nothing at a"),
        (MemoryError(), "error: there is too little memory: pass fewer steps"),
        (RuntimeError("[enforce fail] can't allocate memory: 9 bytes"), "error: there is too little memory"),
        (RuntimeError("CUDA out of memory."), "error: there is too little memory"),
    ],
)
def test_errors_are_printed_in_words(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception, shown: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(registry, "names", fail)
    assert cli("methods", code=1).startswith(shown)


def test_warnings_are_printed_without_their_source(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def reproduce(*_: object, **__: object) -> list[object]:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("rnl is left out", stacklevel=1)
        return []

    monkeypatch.setattr(reproduction, "reproduce", reproduce)
    assert "warning: rnl is left out" in (said := cli("reproduce", "opi2022", "vgg16-cifar10"))
    assert "UserWarning" not in said
