"""Arguments and options that commands share, and the parsing of their values."""

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rheobase.methods import Method
    from rheobase.reports import RunRecord

LARGEST_SEED = 2**32 - 1
"""All random number generators take seeds up to here."""

USUAL_STEPS = 32
"""How long networks are simulated whose neurons do not need another number of steps."""

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C ended."""


def check_device(name: str | None) -> str | None:
    """The device of a name, `auto` for a GPU if there is one; refuses what torch cannot use."""
    if name in (None, "cpu"):
        return name
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"

    try:
        torch.zeros(1, device=name).item()  # which meta cannot
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"torch {torch.__version__} cannot use the device {name!r} ({reason}): leave --device out"
        ) from error
    return name


def check_output(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written, before the work begins."""
    if path is None:
        return path
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the name of a file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is a device or a pipe, which would be replaced: give the name of a file")
    folder = next(parent for parent in path.resolve().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(f"{path} cannot be written: {folder} is not a writable folder")
    return path


def check_page(path: Path | None) -> Path | None:
    """Refuse a file for a page that is not called .html, or that cannot be written."""
    return _check_suffix(path, ".html")


def check_tensors(path: Path | None) -> Path | None:
    """Refuse a file for weights or a network that is not called .safetensors, or that cannot be written."""
    return _check_suffix(path, ".safetensors")


def _check_suffix(path: Path | None, suffix: str) -> Path | None:
    check_output(path)
    if path is not None and path.suffix.lower() != suffix:
        # Behind a dot there may also be a version, as in model.v1.2.
        name = path.stem if path.suffix[1:].isalpha() else path.name
        raise ValueError(f"{path} would hold a {suffix} file: call it {path.with_name(name + suffix)}")
    return path


def check_folder(path: Path | None) -> Path | None:
    """Refuse a folder that files cannot be written to, before the work begins; it need not exist."""
    if path is not None and path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file: give a folder")
    check_output(path and path / "index.html")
    return path


def ensure_apart(*paths: Path | None) -> None:
    """Refuse one file for two purposes, where one would overwrite the other."""
    given = [path.resolve() for path in paths if path is not None]
    if twice := [path for path in given if given.count(path) > 1]:
        raise ValueError(f"{twice[0].name} is given twice: use a different file for each option")


Model = Annotated[
    str,
    typer.Argument(
        help="A built-in network (vgg16, resnet20, small …), a pretrained one (resnet20-cifar10), "
        "`package.module:callable`, or an .onnx file."
    ),
]
Network = Annotated[Path, typer.Argument(help="A spiking network: the file that `rheobase convert` writes.")]
Data = Annotated[str, typer.Option(help="`digits`, `cifar10`, `cifar100`, or a folder of images.")]
Root = Annotated[
    Path | None,
    typer.Option(help="The folder that holds CIFAR; by default $RHEOBASE_DATA, or ~/.cache/rheobase."),
]
Weights = Annotated[
    Path | None, typer.Option(help="A file of `rheobase train`, or a state dict of `torch.save`.")
]
MethodName = Annotated[
    str | None,
    typer.Option(
        help="A conversion method; `rheobase methods` lists them. By default the one the weights were "
        "trained for, else robust-norm with start half."
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--setting", help="A setting of the method, as name=value; repeatable.")
]
Start = Annotated[
    str | None, typer.Option(help="zero, half, uniform, gaussian, or a fraction of the threshold.")
]
Steps = Annotated[int, typer.Option(help="Number of time steps.", min=1)]
StepsOfNetwork = Annotated[
    int | None,
    typer.Option(
        help=f"Number of time steps; by default {USUAL_STEPS}, or as many as the network's neurons need.",
        min=1,
    ),
]
Shape = Annotated[str, typer.Option(help="The shape of one input, such as 3,32,32.")]
Samples = Annotated[int, typer.Option(help="Number of training images for calibration.", min=1)]
Device = Annotated[
    str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.", callback=check_device)
]
Ann = Annotated[str | None, typer.Option(help="The model that was converted, named as for `convert`.")]
Page = Annotated[
    Path | None, typer.Option(help="Write a page with figures to this .html file.", callback=check_page)
]
RecordFile = Annotated[
    Path | None, typer.Option("--record", help="Write the results to this JSON file.", callback=check_output)
]


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["rheobase", *sys.argv[1:]])


def parse_shape(text: str) -> list[int]:
    """The shape of one input, such as 3,32,32."""
    return _integers(text, "shape", "3,32,32")


def parse_steps(text: str) -> list[int]:
    """Numbers of steps, separated by commas."""
    return _integers(text, "list of steps", "8,16,32")


def _integers(text: str, what: str, example: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is not a {what}: give positive integers, such as {example}")
    return [int(part) for part in parts]


def parse_numbers(text: str) -> list[float]:
    """Numbers separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers: give them as 0.5,0.5,0.5") from None


def parse_names(text: str) -> list[str]:
    """Names separated by commas, each once."""
    return list(dict.fromkeys(_names(text)))


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ValueError(f"{text!r} is not a list of names: separate them by commas, without empty ones")
    return names


def parse_corrections(text: str | None) -> list["Method"]:
    """Corrections separated by commas, each with its settings after colons: signed,ftbc:steps=2:rate=0.2."""
    from rheobase import methods

    found = []
    for each in [] if text is None else _names(text):
        name, *pairs = (part.strip() for part in each.split(":"))
        settings = parse_settings(pairs)
        if "base" in settings:
            raise ValueError(f"{each}: {name} corrects what is before it; leave base={settings['base']} out")
        found.append(methods.get(name, **settings))
    return found


def check_owners(method: str, settings: Mapping[str, object], corrections: Sequence["Method"]) -> None:
    """Refuse settings that the method does not have and one of its corrections has."""
    from rheobase import methods

    for setting, value in settings.items():
        owners = [each.name for each in corrections if setting in {field.name for field in fields(each)}]
        known = {field.name for field in fields(methods.find(method))}
        if owners and setting not in known and setting != "base":
            raise ValueError(
                f"--setting is for {method}, which has no {setting!r}, but {owners[0]} has: give it as "
                f"--then {owners[0]}:{setting}={value}"
            )


def parse_pairs(pairs: list[str] | None) -> dict[str, str]:
    """Values by name, each given as name=value."""
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
    """Settings of a method by name, each given as name=value."""
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


@contextmanager
def explained_shape(shape: str) -> Iterator[None]:
    """Add to the error of a model that does not take its inputs that their shape is --shape's."""
    from rheobase.conversion import CaptureError

    try:
        yield
    except CaptureError as error:
        if "could not run on an example input" in str(error):
            raise ValueError(
                f"{error}\n  -> pass the shape of the model's inputs by --shape, not {shape}"
            ) from error
        raise


def write_run(run: "RunRecord", page: Path | None, record: Path | None) -> list[str]:
    """Write a run's record and page, where asked for, and return lines that say where.

    Call it before printing: printing fails when the reader of a pipe is gone.
    """
    from rheobase.reports import diagnosis_page, evaluation_page

    written = []
    if record is not None:
        run.write(record)
        written.append(f"record: {record}")
    if page is not None:
        draw = evaluation_page if run.diagnosis is None else diagnosis_page
        written.append(f"page: {draw(run, page)}")
    return written
