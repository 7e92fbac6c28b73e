"""The registry of papers: every module of this folder with a `PAPER` is registered under its name."""

from functools import cache

from rheobase.io import collect, find_name
from rheobase.papers.paper import Paper


@cache
def _registry() -> dict[str, Paper]:
    return collect(__package__, "PAPER", Paper)


def names() -> list[str]:
    """The names of all papers."""
    return sorted(_registry())


def get(paper: str | Paper) -> Paper:
    """A paper by its name; a paper is returned as it is.

    Raises:
        ValueError: If the name is unknown; the message suggests the nearest.
    """
    if isinstance(paper, Paper):
        return paper
    return find_name("paper", paper, _registry())
