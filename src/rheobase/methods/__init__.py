"""The published conversion methods, one file each.

A method is found by being here: every module of this folder is imported, and every concrete `Method` in it
is registered under its `name`.
"""

import difflib
import importlib
import pkgutil
from functools import cache

from rheobase.methods.base import Maximum, Method, Observer

__all__ = ["Maximum", "Method", "Observer", "get", "names"]


@cache
def _registry() -> dict[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        for value in vars(importlib.import_module(f"{__name__}.{module}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                other = found.setdefault(value.name, value)
                if other is not value:
                    raise RuntimeError(f"two methods are called {value.name!r}: {other} and {value}")
    return found


def names() -> list[str]:
    """The names of all methods."""
    return sorted(_registry())


def get(method: "str | Method", **settings: object) -> Method:
    """A method by its name, with its settings; a method object is given back as it is.

    Raises:
        ValueError: If the name is unknown; the message suggests the nearest.
    """
    if isinstance(method, Method):
        return method
    if method not in _registry():
        near = difflib.get_close_matches(method, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown method {method!r}{hint} Known: {', '.join(names())}")
    return _registry()[method](**settings)
