"""The registry of papers: every module of this folder with a `PAPER` is registered under its name."""

import importlib
import pkgutil
import sys
from functools import cache

from rheobase.io import find_name
from rheobase.papers.paper import Paper


@cache
def _registry() -> dict[str, Paper]:
    found: dict[str, Paper] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(sys.modules[__package__].__path__)):
        paper = getattr(importlib.import_module(f"{__package__}.{module}"), "PAPER", None)
        if isinstance(paper, Paper):
            if paper.name in found:
                raise RuntimeError(f"two papers are called {paper.name!r}")
            found[paper.name] = paper
    return found


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
