"""Look-up by name, with the nearest known name in the error message, and registries by folder."""

import importlib
import pkgutil
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Protocol, TypeVar

_T = TypeVar("_T")
_LISTED = 30


def find_name(
    kind: str,
    name: str,
    known: Mapping[str, _T],
    *,
    of: str = "",
    hint: str = "",
    error: type[Exception] = ValueError,
) -> _T:
    """Return the entry of that name.

    Args:
        kind: What the entries are, as the error message calls one: "method".
        name: The name to look up.
        known: The entries by name.
        of: What the entries belong to, if anything: "max-norm".
        hint: What could be given instead of a name: "or the path of a folder".
        error: The class of the error.

    Raises:
        ValueError: The name is unknown, or an error of the given class; the message suggests the nearest name
            and lists the known ones.
    """
    if name in known:
        return known[name]
    names = {each.lower(): each for each in known}
    near = get_close_matches(str(name).lower(), names, n=1)
    suggestion = f"; did you mean {names[near[0]]!r}? Known: " if near else "; known: "
    listed = ", ".join(list(known)[:_LISTED]) or "none"
    rest = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    owner = f" of {of}" if of else ""
    raise error(f"unknown {kind} {name!r}{owner}{suggestion}{listed}{rest}{hint and f', {hint}'}")


class Named(Protocol):
    """Something with a name."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


_Named = TypeVar("_Named", bound=Named)


def collect(package: str, attribute: str, kind: type[_Named]) -> dict[str, _Named]:
    """What the modules of a package hold under an attribute, by its name.

    Raises:
        RuntimeError: Two have the same name.
    """
    found: dict[str, _Named] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(sys.modules[package].__path__)):
        value = getattr(importlib.import_module(f"{package}.{module}"), attribute, None)
        if isinstance(value, kind):
            if value.name in found:
                raise RuntimeError(f"{package} has two entries with the name {value.name!r}")
            found[value.name] = value
    return found
