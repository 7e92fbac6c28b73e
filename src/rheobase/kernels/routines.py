"""Which routines ran: every kernel reports the one that it chose."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_routines() -> Iterator[list[str]]:
    """Collect the names of the routines that run inside of the context, each once, in order."""
    names: list[str] = []
    token = _collected.set(names)
    try:
        yield names
    finally:
        _collected.reset(token)


def report_routine(name: str) -> None:
    """Report that a routine runs."""
    names = _collected.get()
    if names is not None and name not in names:
        names.append(name)
