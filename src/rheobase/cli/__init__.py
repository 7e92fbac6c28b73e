"""The command line. Each command is one file in `commands` and one function of the package.

torch is imported inside the commands, so that the help does not wait for it.
"""

import io
import sys
import warnings
from collections.abc import Callable
from typing import Annotated

import typer

from rheobase import __version__
from rheobase.cli.commands import (
    advise,
    bench,
    check_hardware,
    compare,
    convert,
    demo,
    diagnose,
    evaluate,
    export,
    inspect,
    methods,
    report,
    reproduce,
    train,
    verify,
)

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Explore": (demo.demo, inspect.inspect, methods.methods),
    "Make": (train.train, convert.convert, export.export),
    "Measure": (evaluate.evaluate, compare.compare, bench.bench),
    "Understand": (diagnose.diagnose, advise.advise),
    "Check": (verify.verify, check_hardware.check_hardware),
    "Reproduce": (reproduce.reproduce, report.report),
}
"""All commands, by the headings of the help."""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"rheobase {__version__}")
        raise typer.Exit


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")

app = typer.Typer(
    help="Convert a trained PyTorch network into a spiking one that answers in a few time steps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


for _heading, _commands in COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_heading)(_command)


def main() -> None:
    """Run the command line. Errors that a user can fix are printed without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without µ must not cost a measurement
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app()
        except (ValueError, TypeError, OSError, RuntimeError, ImportError, MemoryError) as error:
            typer.echo(f"{typer.style('error:', fg='red', bold=True)} {_explain(error)}", err=True)
            sys.exit(1)


def _explain(error: Exception) -> str:
    """What to print of an error: without numbers of errors, and with a remedy for too little memory."""
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        return (
            "there is too little memory: pass fewer steps, or fewer or smaller images (--steps, --limit, "
            f"--samples, --size, --batch-size); {type(error).__name__}: {text.partition(chr(10))[0]:.200}"
        )
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return text


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning without the line of source it comes from."""
    typer.echo(f"warning: {message}", err=True)
