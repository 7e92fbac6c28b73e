"""Checks of arguments that many functions share."""

import operator


def expect_integer(name: str, value: object, least: int = 1) -> int:
    """An argument as an integer; NumPy's integers are taken, True and 4.0 are not.

    Raises:
        ValueError: It is not an integer, or below `least`.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    return number
