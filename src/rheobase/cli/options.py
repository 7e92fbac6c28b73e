"""What commands take: the arguments they share, and text turned into values."""

import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rheobase.reports import RunRecord

Model = Annotated[
    str,
    typer.Argument(
        help="A built-in name (vgg16, resnet20, small …), one that comes trained (resnet20-cifar10), "
        "`package.module:callable`, or an .onnx file."
    ),
]
Network = Annotated[Path, typer.Argument(help="A spiking network, as `rheobase convert` writes it.")]
Data = Annotated[str, typer.Option(help="`digits`, `cifar10`, `cifar100`, or a folder of images.")]
Root = Annotated[Path | None, typer.Option(help="Where CIFAR lies; by default $RHEOBASE_DATA.")]
Weights = Annotated[Path | None, typer.Option(help="A safetensors file, as `rheobase train` writes it.")]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="A conversion method; `rheobase methods` lists them. By default the one the weights were "
        "trained for, else robust-norm."
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--setting", help="A setting of the method, as name=value; repeatable.")
]
Start = Annotated[
    str | None, typer.Option(help="zero, half, uniform, gaussian, or a fraction of the threshold.")
]
Steps = Annotated[int, typer.Option(help="Time steps.", min=1)]
Shape = Annotated[str, typer.Option(help="One input's shape, such as 3,32,32.")]
Samples = Annotated[int, typer.Option(help="Training images to calibrate on.", min=1)]
Limit = Annotated[int | None, typer.Option(help="Only so many test images.", min=1)]


def check_device(name: str | None) -> str | None:
    """A device that torch can use here; torch is asked for others than the CPU only."""
    if name in (None, "cpu"):
        return name
    import torch

    try:
        torch.empty(0, device=name)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"torch {torch.__version__} cannot use the device {name!r} here ({reason}): leave --device out"
        ) from error
    return name


Device = Annotated[str, typer.Option(help="cpu or cuda.", callback=check_device)]


def check_output(path: Path | None) -> Path | None:
    """A file that can be written, which is asked before the work begins."""
    if path is None:
        return path
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file in it")
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: {folder} is no folder that files can be put into")
    return path


def check_folder(path: Path | None) -> Path | None:
    """A folder that files can be put into, there or not yet; asked before the work begins."""
    if path is not None and path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: give a folder")
    check_output(path and path / "index.html")
    return path


def ensure_apart(*paths: Path | None) -> None:
    """Refuse one file for two things, of which one would be written over the other."""
    given = [path.resolve() for path in paths if path is not None]
    if twice := [path for path in given if given.count(path) > 1]:
        raise ValueError(f"{twice[0].name} is named for two things: give each a file of its own")


Ann = Annotated[str | None, typer.Option(help="The model that was converted, named as for `convert`.")]
Page = Annotated[
    Path | None, typer.Option(help="Write a page with figures to this .html file.", callback=check_output)
]
RecordFile = Annotated[
    Path | None,
    typer.Option("--record", help="Write what was measured here as JSON.", callback=check_output),
]

LARGEST_SEED = 2**32 - 1
"""Generators of random numbers all take seeds up to here."""

INTERRUPTED = 130
"""What a command that was stopped by Ctrl-C ends with."""


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["rheobase", *sys.argv[1:]])


def parse_shape(text: str) -> list[int]:
    """One input's shape, such as 3,32,32."""
    return _numbers(text, "a shape", "3,32,32")


@contextmanager
def explained_shape(shape: str) -> "Iterator[None]":
    """Tell by which option inputs got the shape that a model does not take."""
    from rheobase.conversion import CaptureError

    try:
        yield
    except CaptureError as error:
        if "could not run on an example input" in str(error):
            told = f"{error}\n  -> the shape is that of --shape {shape}: give that of the model's images"
            raise ValueError(told) from error
        raise


def parse_steps(text: str) -> list[int]:
    """Numbers of steps, with commas between."""
    return _numbers(text, "a number of steps", "8,16,32")


def parse_names(text: str) -> list[str]:
    """Names with commas between, each once."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"{text!r} is no list of names: give them with commas between, none of them empty")
    return list(dict.fromkeys(names))


def _numbers(text: str, what: str, example: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is not {what}: give whole numbers such as {example}")
    return [int(part) for part in parts]


def parse_pairs(pairs: list[str] | None) -> dict[str, str]:
    """Values by their names, each pair as name=value."""
    found: dict[str, str] = {}
    for pair in pairs or []:
        name, sign, value = pair.partition("=")
        if not sign:
            raise ValueError(f"{pair!r} is not of the form name=value")
        if name in found:
            raise ValueError(f"{name} is set twice, to {found[name]} and {value}: leave one out")
        found[name] = value
    return found


def parse_settings(pairs: list[str] | None) -> dict[str, Any]:
    """Settings of a method by name, each as name=value."""
    return {name: _value(value) for name, value in parse_pairs(pairs).items()}


def _value(text: str) -> Any:
    for known, value in (("true", True), ("false", False), ("none", None)):
        if text.lower() == known:
            return value
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def write_run(run: "RunRecord", page: Path | None, record: Path | None) -> list[str]:
    """Write what was measured where it was asked for, as a record or as a page; gives lines that tell so.

    That comes before anything is printed, which may fail when nobody listens any more.
    """
    from rheobase import reports

    written = []
    if record is not None:
        run.write(record)
        written.append(f"record: {record}")
    if page is not None:
        draw = reports.evaluation_page if run.diagnosis is None else reports.diagnosis_page
        written.append(f"page: {draw(run, page)}")
    return written


def say(lines: "Iterable[str]") -> None:
    """Print lines."""
    for line in lines:
        typer.echo(line)
