"""Settings as files hold them: each is read by a function that accepts what is expected and nothing else.

A `Kind` says which settings a type has in a file. Operations and neurons have theirs in `traits`, starts and
codings next to their classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

MOST = 2**24
"""The largest size, count or position that a file may name."""
TENSOR = "tensor"
"""Stands in the description where the value is a tensor of the file, named by its place."""


class FormatError(ValueError):
    """A file that is not a complete, valid network of this format; the message says what is wrong with it."""


@dataclass(frozen=True)
class Place:
    """Where in a description a value is.

    Attributes:
        path: Its name: that of the node, then of the setting.
        tensors: The file's tensors that no value has taken yet.
        depth: The number of objects it lies in.
    """

    path: str
    tensors: dict[str, Tensor]
    depth: int = 0

    def inside(self, name: str) -> "Place":
        """The place of a setting of the object that is here."""
        if self.depth > 8:
            raise FormatError(f"{self.path[:80]} is nested too deeply")
        return replace(self, path=f"{self.path}.{name}", depth=self.depth + 1)

    def refuse(self, value: Any, expected: str) -> FormatError:
        """The error for a value that is not what was expected."""
        return FormatError(f"{self.path[:200]} is {repr(value)[:60]}, expected {expected}")


Reader = Callable[[Any, Place], Any]
"""Takes a JSON value and its place, returns the Python value or raises a `FormatError`."""


@dataclass(frozen=True)
class Kind:
    """What a file says of one type.

    Attributes:
        settings: How to read each of its settings, which are attributes of the same names.
        build: Makes an object from its settings; by default the type itself does.
    """

    settings: Mapping[str, Reader] = field(default_factory=dict)
    build: Callable[..., Any] | None = None


def one_of(kinds: Mapping[type, Kind]) -> Reader:
    """An object of one of the given types, exactly: a subclass may compute something else."""

    def read(value: Any, place: Place) -> Any:
        name = value.get("kind") if isinstance(value, dict) else None
        found = next((type_ for type_ in kinds if type_.__name__ == name), None)
        if found is None:
            raise place.refuse(name or value, f"one of {', '.join(type_.__name__ for type_ in kinds)}")
        kind = kinds[found]
        if value.keys() != {"kind", *kind.settings}:
            raise place.refuse(sorted(value), f"the settings {', '.join(kind.settings) or 'none'}")
        settings = {key: reader(value[key], place.inside(key)) for key, reader in kind.settings.items()}
        try:
            return (kind.build or found)(**settings)
        except FormatError:
            raise
        except Exception as error:  # a torch constructor refuses in many ways; all mean the same here
            raise FormatError(f"{place.path[:200]} cannot be a {name}: {str(error)[:200]}") from error

    return read


def integer(low: int, high: int = MOST) -> Reader:
    """An integer within bounds."""

    def read(value: Any, place: Place) -> int:
        if type(value) is not int or not low <= value <= high:
            raise place.refuse(value, f"an integer in {low} … {high}")
        return value

    return read


def number(value: Any, place: Place) -> float:
    """A finite number."""
    # NaN is within no bounds; an integer may be too large to become a float at all.
    if type(value) not in (int, float) or not abs(value) <= 1e38:
        raise place.refuse(value, "a finite number")
    return float(value)


def flag(value: Any, place: Place) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise place.refuse(value, "true or false")
    return value


def nothing(value: Any, place: Place) -> None:
    """Null."""
    if value is not None:
        raise place.refuse(value, "null")


def word(*choices: str) -> Reader:
    """One of the given words."""

    def read(value: Any, place: Place) -> str:
        if not isinstance(value, str) or value not in choices:
            raise place.refuse(value, f"one of {', '.join(choices)}")
        return value

    return read


def text(value: Any, place: Place) -> str:
    """A text."""
    if not isinstance(value, str) or len(value) > 4096:
        raise place.refuse(value, "a text of at most 4096 characters")
    return value


def several(reader: Reader, most: int = 8, least: int = 0) -> Reader:
    """A list of values, returned as a tuple."""

    def read(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise place.refuse(value, f"a list of {most if least == most else f'at most {most}'}")
        return tuple(reader(v, place) for v in value)

    return read


def sizes(dims: int, each: Reader) -> Reader:
    """One size for all dimensions, or one for each."""
    return either(each, several(each, dims, least=dims))


def loose_sizes(dims: int, each: Reader) -> Reader:
    """As `sizes`, or a list of one for all dimensions."""
    return either(each, several(each, 1, least=1), several(each, dims, least=dims))


def either(*readers: Reader) -> Reader:
    """What the first matching reader accepts."""

    def read(value: Any, place: Place) -> Any:
        errors = []
        for reader in readers:
            try:
                return reader(value, place)
            except FormatError as error:
                errors.append(str(error).partition("expected ")[2])
        raise place.refuse(value, " or ".join(errors))

    return read


def tensor(value: Any, place: Place) -> Tensor:
    """The tensor that the file has for this place; no other place can have it."""
    if value != TENSOR:
        raise place.refuse(value, f"{TENSOR!r}")
    if place.path not in place.tensors:
        raise FormatError(f"the file lacks the tensor {place.path[:200]!r}")
    return place.tensors.pop(place.path)


SEED = integer(0, 2**63 - 1)
