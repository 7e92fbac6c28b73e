"""How far a long task is: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True)
class Display:
    """Where a task reports to.

    Attributes:
        advance: Call after each piece of work.
        say: Show a line that stays.
    """

    advance: Callable[[], None]
    say: Callable[[str], None]


@contextmanager
def display(title: str, total: int | None, done: int = 0, *, shown: bool = True) -> Iterator[Display]:
    """Show a task's progress on standard error.

    Args:
        title: What is being done.
        total: Pieces of work in all, or None where nobody knows.
        done: How many of them lie behind already.
        shown: False to show nothing at all.
    """
    if not shown:
        yield Display(advance=lambda: None, say=lambda line: None)
        return
    if not sys.stderr.isatty():
        yield Display(advance=lambda: None, say=lambda line: print(line, file=sys.stderr, flush=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done)
        show = partial(bar.console.out, highlight=False)
        yield Display(advance=lambda: bar.advance(task), say=show)
