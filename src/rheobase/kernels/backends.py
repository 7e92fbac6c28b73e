"""Which implementation of a kernel runs, and why another one cannot."""

import os
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch


def explain_no_triton(device: torch.device) -> str | None:
    """Say why Triton kernels cannot run on a device, or return None when they can."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda":
        return explain_no_launch(device)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"the tensors are on {device}; move them to a GPU, or set TRITON_INTERPRET=1 to run it interpreted"


@cache
def explain_no_launch(device: torch.device) -> str | None:
    """Try a small Triton kernel on a GPU: say why it fails, as with an old driver, or return None."""
    try:
        from rheobase.kernels.integrate_fire import triton

        current, spikes = (torch.full((1, 16), value, device=device) for value in (1.0, 0.0))
        membrane, threshold = torch.zeros(16, device=device), torch.ones(1, device=device)
        triton.run(current, membrane, threshold, 1, spikes, strict=False, reset="subtract")
        right = bool(spikes.all()) and not bool(membrane.any())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any failure of the compiler, the driver or the card
        lines = str(error).splitlines() or [""]
        return f"Triton fails on {device}: {type(error).__name__}: {lines[0]}"
    return None if right else f"Triton gives wrong results on {device}"


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
