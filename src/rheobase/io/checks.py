"""Checks of arguments that many functions share."""

import operator

import torch
from torch import Tensor


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


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. Nothing as large as the tensor is allocated."""
    if not values.is_floating_point() or not values.numel():
        return bool(values.isfinite().all())
    # Extremes are NaN if any value is.
    return bool(torch.stack([values.amin(), values.amax()]).isfinite().all())
