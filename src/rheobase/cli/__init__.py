"""The command line: each command is one verb of the package.

torch is imported inside the commands, so that help is there at once.
"""

import io
import sys
import warnings
from collections.abc import Callable

import typer

from rheobase.cli import checking, explaining, making, measuring, reproducing, seeing

app = typer.Typer(
    help="Turn a trained ReLU network into a spiking one that answers in a few time steps.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "See": (seeing.demo, seeing.inspect, seeing.methods),
    "Make": (making.train, making.convert, making.export),
    "Measure": (measuring.evaluate, measuring.compare, measuring.bench),
    "Understand": (explaining.diagnose, explaining.advise),
    "Check": (checking.verify, checking.fit),
    "Reproduce": (reproducing.reproduce, reproducing.report),
}
"""All commands, under the headings of the help."""

for _heading, _commands in COMMANDS.items():
    for _command in _commands:
        app.command(rich_help_panel=_heading)(_command)


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """A warning in words, without the line of source it came from."""
    typer.echo(f"warning: {message}", err=True)


def main() -> None:
    """Run the command line; what a user can mend is said in words, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without µ must not cost a measurement
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            app()
        except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
            from rich.console import Console
            from rich.markup import escape

            console = Console(stderr=True, highlight=False, soft_wrap=True)
            console.print(f"[bold red]error:[/] {escape(str(error))}")
            sys.exit(1)
