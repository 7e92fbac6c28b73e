"""Documents: dataclasses as JSON files, in which every field is checked when they are read."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rheobase.io.files import replace_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def write_document(document: "DataclassInstance", path: Path | str) -> None:
    """Write a document in one step, a line for each field.

    Raises:
        TypeError: A field is not of its type.
        ValueError: A number is infinite or NaN.
    """
    content = asdict(document)
    restore(type(document), content)
    # Names stay in the order they are in: a network's sites are not in that of the alphabet.
    lines = [f" {json.dumps(n)}: {json.dumps(value, ensure_ascii=False)}" for n, value in content.items()]
    replace_file(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_document(kind: type[_T], path: Path | str) -> _T:
    """Read a document of one kind.

    Raises:
        ValueError: The file is not JSON, lacks a field, has one too many, or one of the wrong type.
    """
    return build_document(kind, read_fields(path), path)


def build_document(kind: type[_T], content: Mapping[str, Any], path: Path | str) -> _T:
    """A document of what was read from a file; errors name the file and the field."""
    try:
        found: _T = restore(kind, content)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}; write the file again with this version") from error
    return found


def read_fields(path: Path | str) -> dict[str, Any]:
    """A JSON file with named fields, of whatever kind."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, not named fields")
    return content


def restore(kind: Any, value: Any, name: str = "") -> Any:
    """A value of a type, made of what JSON holds of it; an error that says which field does not fit."""
    base: Any = get_origin(kind) or kind
    if base is Any:
        return value
    if base in (Union, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else restore(inner, value, name)
    if is_dataclass(base):
        return _restore_fields(base, value, name)
    if base is dict:
        key_kind, value_kind = get_args(kind)
        named = _expect(dict, value, name, "values by name")
        return {
            _restore_key(key_kind, key, name): restore(value_kind, each, f"{name}[{key!r}]")
            for key, each in named.items()
        }
    if base in (list, tuple):
        listed = _expect((list, tuple), value, name, "a list")
        return base(restore(get_args(kind)[0], each, f"{name}[{i}]") for i, each in enumerate(listed))
    if isinstance(value, bool) and base is not bool:
        raise TypeError(f"{name} should be {_WORDS[base]}, got {value!r}")
    _expect((int, float) if base is float else base, value, name, _WORDS[base])
    if base is float and not math.isfinite(value):
        raise ValueError(f"{name} should be a finite number, got {value}")
    return base(value)


def _restore_fields(kind: Any, value: Any, name: str) -> Any:
    where = f"{name}." if name else ""
    content = _expect(dict, value, name or kind.__name__, f"the fields of {kind.__name__}")
    known, hints = [f.name for f in fields(kind)], get_type_hints(kind)
    if missing := [each for each in known if each not in content]:
        raise ValueError(f"the field {where + missing[0]!r} is missing")
    if unknown := sorted(set(content) - set(known)):
        raise ValueError(f"there is a field {where + unknown[0]!r}, which {kind.__name__} does not have")
    return kind(**{each: restore(hints[each], content[each], where + each) for each in known})


def _restore_key(kind: Any, key: Any, name: str) -> Any:
    """A key, which JSON has as text."""
    try:
        return kind(key)
    except ValueError:
        raise TypeError(f"{name} should be given by {_WORDS[kind]}, got {key!r}") from None


def _expect(kind: Any, value: Any, name: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} should be {words}, got {value!r:.80}")
    return value


def ensure_percent(name: str, value: float) -> None:
    """Refuse what cannot be a share of images, by the name of its field."""
    if not 0 <= value <= 100:
        raise ValueError(f"{name} must be in percent, 0 to 100, got {value!r}")
