"""Plain values of a file: each is read by a function that accepts what is expected and nothing else."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

MOST = 2**24
"""The largest size, count or position that a file may name."""
TENSOR = "tensor"
"""Stands in the description where the value is a tensor of the file, named by its place."""


class FormatError(ValueError):
    """A file that is not a whole, sound network of this format; the message says what is wrong with it."""


@dataclass(frozen=True)
class Place:
    """Where in a description a value stands.

    Attributes:
        path: Its name: that of the node, then of the setting.
        tensors: The file's tensors that no value has taken yet.
        depth: How many objects it lies in.
    """

    path: str
    tensors: dict[str, Tensor]
    depth: int = 0

    def inside(self, name: str) -> "Place":
        """The place of a setting of the object that stands here."""
        if self.depth > 8:
            raise FormatError(f"{self.path[:80]} is nested too deeply")
        return replace(self, path=f"{self.path}.{name}", depth=self.depth + 1)

    def refuse(self, value: Any, expected: str) -> FormatError:
        """The error for a value that is not what was expected."""
        return FormatError(f"{self.path[:200]} is {repr(value)[:60]}, expected {expected}")


Reader = Callable[[Any, Place], Any]
"""Takes a JSON value and its place, gives the Python value or raises a `FormatError`."""


def whole(low: int, high: int = MOST) -> Reader:
    """A whole number between two."""

    def read(value: Any, place: Place) -> int:
        if type(value) is not int or not low <= value <= high:
            raise place.refuse(value, f"a whole number in {low} … {high}")
        return value

    return read


def number(value: Any, place: Place) -> float:
    """A finite number."""
    # NaN is within no bounds; a whole number may be too large to become a float at all.
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
    """One of some words."""

    def read(value: Any, place: Place) -> str:
        if not isinstance(value, str) or value not in choices:
            raise place.refuse(value, f"one of {', '.join(choices)}")
        return value

    return read


def several(reader: Reader, most: int = 8) -> Reader:
    """A list of values, given as a tuple."""

    def read(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise place.refuse(value, f"a list of at most {most}")
        return tuple(reader(v, place) for v in value)

    return read


def either(*readers: Reader) -> Reader:
    """What the first of some readers accepts."""

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
