"""Progress of long tasks: bars and tables in terminals and notebooks, else plain lines; Ctrl-C."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

from rheobase.io.results import html_table

_REFRESH = 0.1  # seconds between two drawings in a notebook


@dataclass(frozen=True)
class Display:
    """What a task calls.

    Attributes:
        advance: Call after each piece of work.
        say: Print a line.
    """

    advance: Callable[[], None]
    say: Callable[[str], None]


_SHOWN = ContextVar("shown", default=True)


@contextmanager
def showing(shown: bool) -> Iterator[None]:
    """Show the progress of what runs inside, or nothing of it."""
    token = _SHOWN.set(_SHOWN.get() and shown)
    try:
        yield
    finally:
        _SHOWN.reset(token)


@contextmanager
def display(title: str, total: int | None, done: int = 0, *, shown: bool = True) -> Iterator[Display]:
    """Show a task's progress on standard error, or below the cell of a notebook.

    Args:
        title: Name of the task.
        total: Number of pieces of work, or None if unknown.
        done: Number of pieces that are already done.
        shown: False to show nothing.
    """
    if not (shown and _SHOWN.get()):
        yield Display(advance=lambda: None, say=lambda line: None)
        return
    if _in_notebook():
        with _cell(title, total, done) as cell:
            yield Display(advance=cell.advance, say=_print)
        return
    if not _on_terminal():
        yield Display(advance=lambda: None, say=_print)
        return
    with _bar() as bar:
        task = bar.add_task(title, total=total, completed=done)
        yield Display(advance=lambda: bar.advance(task), say=bar.console.out)


Add = Callable[[str, Sequence[str], str], None]
"""Adds a row to a table, given as a plain line and as cells with a style."""


@contextmanager
def live_table(title: str, columns: Sequence[str], total: int, *, shown: bool = True) -> Iterator[Add]:
    """Show a table on standard error that grows while a task runs; yields the function that adds a row.

    In a terminal or notebook the latest rows are shown above a bar, and the complete table remains at the
    end, also after an error. Otherwise each row is a plain line.

    Args:
        title: Name of the task.
        columns: The headings.
        total: The largest number of rows.
        shown: False to show nothing.
    """
    shown = shown and _SHOWN.get()
    if shown and _in_notebook():
        with _cell(title, total, 0, columns) as cell:
            yield lambda line, cells, style: cell.advance(cells)
        return
    if not shown or not _on_terminal():
        yield lambda line, cells, style: _print(line) if shown else None
        return
    from rich.console import Group
    from rich.live import Live

    console, bar = _console(), _bar()
    task = bar.add_task(title, total=total)
    rows: list[tuple[Sequence[str], str]] = []

    def add(line: str, cells: Sequence[str], style: str) -> None:
        rows.append((cells, style))
        bar.advance(task)

    def render() -> Group:
        return Group(_draw(columns, rows[4 - max(5, console.height) :]), bar)

    try:
        with Live(get_renderable=render, console=console, transient=True):
            yield add
    finally:
        console.print(_draw(columns, rows))


@contextmanager
def announce(line: str, after: float = 0.5) -> Iterator[None]:
    """Print a line on standard error if the block takes longer than some seconds."""
    timer = threading.Timer(after, _print, (line,))
    timer.daemon = True
    if _SHOWN.get():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Let Ctrl-C wait for the current piece of work: the first sets the event, a second one stops at once.

    Outside the main thread, or if the signal is ignored, the event is never set.
    """
    asked = threading.Event()
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield asked
        return

    def ask(*_: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, usual)
        _print("stopping after the current piece of work; press Ctrl-C again to stop at once")

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, usual)


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


class _Cell:
    """A bar below the cell of a notebook, with a table above it if there are columns."""

    def __init__(self, title: str, total: int | None, done: int, columns: Sequence[str] = ()) -> None:
        from IPython.display import HTML, display

        self.title, self.total, self.done, self.columns = title, total, done, columns
        self.rows: list[Sequence[str]] = []
        self.html, self.shown_at = HTML, time.monotonic()
        self.handle = display(HTML(self._draw()), display_id=True)

    def _draw(self, ended: bool = False) -> str:
        table = html_table(self.columns, self.rows) if self.columns else ""
        place = "" if self.total is None else f'value="{self.done}" max="{self.total}"'
        count = self.done if self.total is None else f"{self.done}/{self.total}"
        return table + ("" if ended else f"{escape(self.title)} <progress {place}></progress> {count}")

    def advance(self, row: Sequence[str] | None = None) -> None:
        self.done += 1
        self.rows += [] if row is None else [row]
        if time.monotonic() - self.shown_at > _REFRESH:
            self.handle.update(self.html(self._draw()))
            self.shown_at = time.monotonic()

    def end(self) -> None:
        self.handle.update(self.html(self._draw(ended=True)))


@contextmanager
def _cell(title: str, total: int | None, done: int, columns: Sequence[str] = ()) -> Iterator[_Cell]:
    """A bar below the cell of a notebook, as long as the block runs; the table remains.

    Nothing is shown of tasks inside of it: each would leave an empty line behind.
    """
    cell = _Cell(title, total, done, columns)
    try:
        with showing(False):
            yield cell
    finally:
        cell.end()


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def _print(line: str) -> None:
    if sys.stderr is not None:  # if it was closed, print would use standard output
        print(line, file=sys.stderr, flush=True)


@cache
def _console() -> Any:
    """Shared by bars and tables, so that nested ones are drawn below each other."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=_console(), transient=True)


def _draw(columns: Sequence[str], rows: Sequence[tuple[Sequence[str], str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for cells, style in rows:
        table.add_row(*(Text(cell) for cell in cells), style=style or None)
    return table
