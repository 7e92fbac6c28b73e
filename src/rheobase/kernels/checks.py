"""Checks of a kernel's arguments, made before anything is changed."""

from collections.abc import Iterable

import torch
from torch import Tensor


def check_dtype(label: str, tensor: Tensor, allowed: Iterable[torch.dtype]) -> None:
    """Raise TypeError unless the tensor has one of the dtypes."""
    allowed = tuple(allowed)
    if tensor.dtype not in allowed:
        raise TypeError(f"{label} is {tensor.dtype}: expected {' or '.join(str(dtype) for dtype in allowed)}")


def check_shape(label: str, tensor: Tensor, *allowed: tuple[int, ...]) -> None:
    """Raise ValueError unless the tensor has one of the shapes."""
    if tuple(tensor.shape) not in allowed:
        expected = " or ".join(str(shape) for shape in allowed)
        raise ValueError(f"{label} has shape {tuple(tensor.shape)}: expected {expected}")


def check_threshold(threshold: Tensor, sample: tuple[int, ...]) -> None:
    """Raise ValueError unless the threshold broadcasts to a sample's shape."""
    fits = threshold.dim() <= len(sample) and all(
        have in (1, want) for have, want in zip(reversed(threshold.shape), reversed(sample), strict=False)
    )
    if not fits:
        raise ValueError(
            f"threshold has shape {tuple(threshold.shape)}: "
            f"expected one that broadcasts to a sample's {sample}"
        )


def check_device(device: torch.device, **tensors: Tensor | None) -> None:
    """Raise ValueError unless every tensor given is on the device."""
    for label, tensor in tensors.items():
        if tensor is not None and tensor.device != device:
            raise ValueError(f"{label} is on {tensor.device}: expected {device}, where the other tensors are")


def check_counts(
    totals: Tensor | None, reached: Tensor | None, fan_out: Tensor | None, shape: tuple[int, ...]
) -> None:
    """Raise unless what a kernel counts into fits its spikes, of shape (T, B, ...)."""
    if (reached is None) != (fan_out is None):
        raise ValueError("reached and fan_out belong together: give both, or none")
    if reached is not None and totals is None:
        raise ValueError("reached is given without totals: give both, or none")
    for label, counts, dtype in (("totals", totals, torch.int32), ("reached", reached, torch.int64)):
        if counts is not None:
            check_dtype(label, counts, (dtype,))
            check_shape(label, counts, shape[:2])
            if not counts.is_contiguous():
                raise ValueError(f"{label} has strides {counts.stride()}: expected a contiguous tensor")
    if fan_out is not None:
        check_shape("fan_out", fan_out, shape[2:])


def check_reset(reset: str) -> None:
    """Raise ValueError unless the reset is known."""
    if reset not in ("subtract", "zero"):
        raise ValueError(f"unknown reset {reset!r}: expected 'subtract' or 'zero'")
