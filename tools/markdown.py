"""Markdown: tables, and blocks between markers that a command fills in."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from rheobase.reports import Line, Table, to_markdown

_BLOCK = re.compile(r"(<!-- (?P<name>[\w-]+) -->\n)(?P<content>.*?)(<!-- /(?P=name) -->)", re.DOTALL)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    return to_markdown(Table("", tuple(header), tuple(Line(row[0], tuple(row[1:])) for row in rows)))


def fill(text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """The text with every block between `<!-- NAME -->` and `<!-- /NAME -->` written again.

    Raises:
        KeyError: A block has no generator.
    """
    return _BLOCK.sub(lambda m: f"{m[1]}\n{blocks[m['name']]().strip()}\n\n{m[4]}", text)


def names(text: str) -> list[str]:
    """The names of the blocks in a text."""
    return [found["name"] for found in _BLOCK.finditer(text)]
