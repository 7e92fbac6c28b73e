"""Which implementation of a kernel runs, and why another one cannot."""

import os
from collections.abc import Sequence
from importlib.util import find_spec

import torch


def explain_no_triton(device: torch.device) -> str | None:
    """Say why Triton kernels cannot run on a device, or return None when they can."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"the tensors are on {device}; move them to a GPU, or set TRITON_INTERPRET=1 to run it interpreted"


def choose_backend(
    device: torch.device | str,
    backend: str = "auto",
    *,
    offered: Sequence[str] = ("reference", "cpu", "triton"),
) -> str:
    """Name the backend that will run for tensors on a device.

    Args:
        device: Where the tensors live.
        backend: `"auto"` for the fastest that runs there, or the one wanted.
        offered: The backends the kernel has.

    Returns:
        One of `offered`.

    Raises:
        ValueError: The backend asked for is unknown or cannot run on the device; the message says why.
    """
    device = torch.device(device)
    if backend not in ("auto", *offered):
        raise ValueError(
            f"unknown backend {backend!r}: expected 'auto' or one of {', '.join(map(repr, offered))}"
        )
    if backend == "auto":
        if device.type == "cuda" and "triton" in offered and explain_no_triton(device) is None:
            return "triton"
        return "cpu" if device.type == "cpu" and "cpu" in offered else "reference"
    if backend == "cpu" and device.type != "cpu":
        raise ValueError(
            f"backend 'cpu' cannot run: the tensors are on {device}; use 'auto' or move them to the CPU"
        )
    if backend == "triton" and (reason := explain_no_triton(device)) is not None:
        raise ValueError(f"backend 'triton' cannot run: {reason}")
    return backend
