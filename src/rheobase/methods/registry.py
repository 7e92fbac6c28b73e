"""The registry: every module of this folder is imported, and every `Method` with a `name` is registered."""

import importlib
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from rheobase.io import find_name
from rheobase.methods.contract import Method
from rheobase.network import Provenance


@cache
def _registry() -> dict[str, type[Method]]:
    found: dict[str, type[Method]] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(sys.modules[__package__].__path__)):
        for value in vars(importlib.import_module(f"{__package__}.{module}")).values():
            if isinstance(value, type) and issubclass(value, Method) and "name" in vars(value):
                other = found.setdefault(value.name, value)
                if other is not value:
                    raise RuntimeError(f"two methods have the name {value.name!r}: {other} and {value}")
    return found


def names() -> list[str]:
    """The names of all methods."""
    return sorted(_registry())


def find(name: str) -> type[Method]:
    """The class of a method by its name.

    Raises:
        ValueError: The name is unknown, and the message suggests the closest one; or it is that of a chain.
        TypeError: It is not a name.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"expected a method's name ({', '.join(names())}) or a Method with its settings, got {name!r}"
        )
    if {",", "+"} & set(name):
        raise ValueError(
            f"expected the name of one method, got {name!r}: pass corrections as a list, such as "
            'rheobase.convert(model, "qcfs", then=["signed", "ftbc"]) (on the command line --method qcfs '
            "--then signed,ftbc)"
        )
    return find_name("method", name, _registry())


def get(method: str | Method, **settings: Any) -> Method:
    """A method by its name and settings; a method object is returned as it is.

    Raises:
        ValueError: The name is unknown.
        TypeError: It has no such setting, or a required one is missing.
    """
    if isinstance(method, Method):
        if settings:
            raise TypeError(
                f"pass the settings {sorted(settings)} to the method object, {type(method).__name__}(…)"
            )
        return method
    found = find(method)
    known = {f.name: f for f in fields(found)}
    for setting in settings:
        hint = _explain_owners(setting, settings[setting])
        kind = find_name("setting", setting, known, of=method, hint=hint, error=TypeError).type
        _check_kind(method, setting, kind, settings[setting])
    missing = [n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if absent := [n for n in missing if n not in settings]:
        raise TypeError(f"{method} needs the setting {absent[0]!r}: pass {absent[0]}=…")
    return found(**settings)


def _explain_owners(setting: str, value: Any) -> str:
    """How to pass a setting to the corrections that have it; empty if none has."""
    kinds = {name: {f.name for f in fields(kind)} for name, kind in _registry().items()}
    owners = [name for name, known in kinds.items() if {"base", setting} <= known]
    if not owners or setting == "base":
        return ""
    found = f'("{owners[0]}", {setting}={value!r})'
    typed = f"--then {owners[0]}:{setting}={value}"
    return (
        f"or pass it to a correction that has it ({', '.join(owners)}), as in "
        f"then=[rheobase.methods.get{found}] or {typed}"
    )


def restore(provenance: Provenance) -> Method | None:
    """The method that a network was converted with; None where its settings do not describe it any more."""
    return _restore(provenance.method, provenance.settings)


def settings_of(method: Method) -> dict[str, object]:
    """The settings of a method as a provenance holds them; one that is a method has its name as "method"."""
    settings = asdict(method)
    for field in fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Method):
            settings[field.name] = {"method": value.name, **settings_of(value)}
    return settings


def _restore(name: str, settings: Mapping[str, Any]) -> Method | None:
    if name not in names() or settings.keys() != {f.name for f in fields(find(name))}:
        return None
    inner = {key: dict(value) for key, value in settings.items() if isinstance(value, dict)}
    found = {key: _restore(value.pop("method", ""), value) for key, value in inner.items()}
    plain = None not in found.values() and _plain(v for key, v in settings.items() if key not in found)
    return get(name, **{**settings, **found}) if plain else None


def _plain(values: Iterable[object]) -> bool:
    """Whether no value was an object that is a dictionary now."""
    return all(_plain(v) if isinstance(v, (tuple, list)) else not isinstance(v, dict) for v in values)


_KINDS = {bool: "True or False", int: "an integer", float: "a number", NoneType: "None"}


def _check_kind(method: str, setting: str, kind: Any, value: Any) -> None:
    """Refuse a value of the wrong type for a setting with a plain type."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if not all(k in _KINDS for k in kinds):
        return
    whole = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        bool: isinstance(value, bool),
        int: whole,
        float: whole or isinstance(value, float),
        NoneType: value is None,
    }
    if not any(fits[k] for k in kinds):
        known = " or ".join(_KINDS[k] for k in kinds)
        raise TypeError(f"{method}: {setting} must be {known}, got {value!r}")
