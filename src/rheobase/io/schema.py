"""Dataclasses as JSON files; every field is checked against its annotation when one is read or written.

A file may lack fields that have a default, so new fields do not make old files unreadable. Unknown fields are
refused. `Annotated[float, Digits(8)]` keeps a number to eight significant digits.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from rheobase.io.files import replace_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")
_WORDS = {str: "text", int: "an integer", float: "a number", bool: "true or false"}
# The types of JSON: bool before int, which it is a kind of.
_PLAIN: dict[Any, Any] = {
    NoneType: NoneType,
    bool: bool,
    int: int,
    float: float,
    str: str,
    dict: dict[str, Any],
    (list, tuple): list[Any],
}


@dataclass(frozen=True)
class Digits:
    """An annotation: the number of significant digits to keep of each number."""

    count: int


def write_document(document: "DataclassInstance", path: Path | str, *, sort_keys: bool = False) -> None:
    """Write a document in one step, one line per field.

    Args:
        document: An instance of a dataclass.
        path: The file.
        sort_keys: Whether to sort fields and keys, so that equal documents give equal bytes.

    Raises:
        TypeError: A field is not of its type.
        ValueError: A number is infinite or NaN.
    """
    content = asdict(document)
    restore(type(document), content)
    lines = [
        f" {json.dumps(name)}: {json.dumps(content[name], ensure_ascii=False, sort_keys=sort_keys)}"
        for name in (sorted(content) if sort_keys else content)
    ]
    replace_file(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read_document(kind: type[_T], path: Path | str) -> _T:
    """Read a document of one kind.

    Raises:
        ValueError: The file is not JSON, lacks a field, has an unknown one, or one of the wrong type.
    """
    return build_document(kind, read_fields(path), path)


def build_document(kind: type[_T], content: Mapping[str, Any], path: Path | str) -> _T:
    """Build a document from the content of a file; errors name the file and the field."""
    try:
        found: _T = restore(kind, content)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}; write the file again with this version") from error
    return found


def read_fields(path: Path | str) -> dict[str, Any]:
    """Read a JSON file that holds named fields, of any kind."""
    path = Path(path)
    if path.is_dir() or not path.exists():
        found = "a folder" if path.is_dir() else "nothing"
        raise FileNotFoundError(f"there is {found} at {path}; expected a JSON file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected named fields")
    return content


def conform(document: "DataclassInstance") -> None:
    """Check every field of a document and round its numbers, in place; for `__post_init__`."""
    for name, kind in get_type_hints(type(document), include_extras=True).items():
        object.__setattr__(document, name, restore(kind, getattr(document, name), name))


def restore(kind: Any, value: Any, name: str = "") -> Any:
    """Build a value of a type from its JSON form.

    Args:
        kind: A dataclass, a number, text, one of several words, a list, tuple or dictionary of such, an
            optional one, or `Any` for whatever JSON can hold.
        value: The JSON value. Dictionaries may have keys of their type in place of text.
        name: The field, for the error message.

    Raises:
        TypeError: The value does not have this type.
        ValueError: A number is not finite, a word is none of the known, a field is missing or unknown.
    """
    return _restore(kind, value, name, None)


def _restore(kind: Any, value: Any, name: str, digits: int | None) -> Any:
    base: Any = get_origin(kind) or kind
    if base is Annotated:
        kind, annotation = get_args(kind)
        return _restore(kind, value, name, annotation.count)
    if base is Any:
        return _restore(_kind_of(value, name), value, name, digits)
    if base in (Union, UnionType):
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return None if value is None else _restore(inner, value, name, digits)
    if is_dataclass(base):
        return _restore_fields(base, value, name)
    if base is dict:
        key_kind, value_kind = get_args(kind)
        named = _expect(dict, value, name, "values by name")
        return {
            _restore_key(key_kind, key, name): _restore(value_kind, each, f"{name}[{key!r}]", digits)
            for key, each in named.items()
        }
    if base in (list, tuple):
        listed = _expect((list, tuple), value, name, "a list")
        inner = get_args(kind)[0]
        return base(_restore(inner, each, f"{name}[{i}]", digits) for i, each in enumerate(listed))
    if base is NoneType:
        return None
    if base is Literal:
        if value not in get_args(kind):
            raise ValueError(f"{name} should be one of {', '.join(get_args(kind))}, got {value!r:.80}")
        return value
    if isinstance(value, bool) and base is not bool:
        raise TypeError(f"{name} should be {_WORDS[base]}, got {value!r}")
    _expect((int, float) if base is float else base, value, name, _WORDS[base])
    if base is float:
        if not abs(value) <= sys.float_info.max:  # an integer may be too large to become a float at all
            raise ValueError(f"{name} should be a finite number, got {value!r:.80}")
        return float(value if digits is None else f"{value:.{digits}g}")
    return base(value)


def _kind_of(value: Any, name: str) -> Any:
    """The type of a value that may be anything JSON can hold."""
    for base, kind in _PLAIN.items():
        if isinstance(value, base):
            return kind
    raise TypeError(f"{name} should be text, numbers, lists or named values, got a {type(value).__name__}")


def _restore_fields(kind: Any, value: Any, name: str) -> Any:
    where = f"{name}." if name else ""
    content = _expect(dict, value, name or "the content", "named values")
    known, hints = {f.name: f for f in fields(kind)}, get_type_hints(kind, include_extras=True)
    required = (n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING)
    if missing := [each for each in required if each not in content]:
        raise ValueError(f"the field {where + missing[0]!r} is missing")
    if unknown := sorted(set(content) - set(known)):
        raise ValueError(f"unknown field {where + unknown[0]!r}")
    return kind(**{each: restore(hints[each], content[each], where + each) for each in content})


def _restore_key(kind: Any, key: Any, name: str) -> Any:
    """A key of its type, or as text, which is all that JSON has."""
    try:
        return _restore(kind, kind(key) if isinstance(key, str) else key, f"a key of {name}", None)
    except ValueError:
        raise TypeError(f"a key of {name} should be {_WORDS[kind]}, got {key!r}") from None


def _expect(kind: Any, value: Any, name: str, words: str) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{name} should be {words}, got {value!r:.80}")
    return value


def ensure_percent(name: str, value: float) -> None:
    """Refuse a value outside 0 to 100, by the name of its field."""
    if not 0 <= value <= 100:
        raise ValueError(f"{name} must be in percent, 0 to 100, got {value!r}")
