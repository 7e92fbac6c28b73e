"""Which implementation of a kernel runs, and why another one cannot."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from threading import Lock, Thread

import torch
from torch import Tensor

NO_DOUBLE = {"mps"}
"""The types of devices that have no double precision."""
_CAPABILITY = (8, 0)
_looking = Lock()


def widest_float(device: torch.device) -> torch.dtype:
    """The widest floating point of a device."""
    return torch.float32 if device.type in NO_DOUBLE else torch.float64


def widen(x: Tensor) -> Tensor:
    """Values in double precision: on their own device, or on the CPU if that device has none."""
    return x.cpu().double() if x.device.type in NO_DOUBLE else x.double()


def explain_no_triton(device: torch.device) -> str | None:
    """Say why Triton kernels cannot run on a device, or return None when they can."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda":
        with _looking:  # threads wait for the first one
            return explain_no_launch(device)
    if device.type != "cpu":
        return f"the tensors are on {device}, and the kernels are written for NVIDIA GPUs"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"the tensors are on {device}; move them to a GPU, or set TRITON_INTERPRET=1 to run it interpreted"


@cache
def explain_no_launch(device: torch.device) -> str | None:
    """Look at a GPU and try a small Triton kernel: say why it fails, as with old drivers, or return None."""
    if torch.version.hip is not None:
        return f"{device} is an AMD GPU, and the kernels are written for NVIDIA GPUs"
    if device.type == "cuda" and (found := torch.cuda.get_device_capability(device)) < _CAPABILITY:
        needed = ".".join(map(str, _CAPABILITY))
        return f"{device} has compute capability {'.'.join(map(str, found))}, and the kernels need {needed}"
    try:
        from rheobase.kernels.trial import double

        values = torch.ones(16, device=device)
        double(values)
        right = bool((values == 2).all())
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # any failure of the compiler, the driver or the card
        lines = str(error).splitlines() or [""]
        return f"Triton fails on {device}: {type(error).__name__}: {lines[0]}"
    return None if right else f"Triton gives wrong results on {device}"


def load_triton(device: torch.device) -> None:
    """Begin to load Triton for a GPU in a thread: PyTorch's own libraries take as long to load."""
    if device.type == "cuda":
        Thread(target=_look, args=(device,), daemon=True).start()


def _look(device: torch.device) -> None:
    with suppress(Exception):  # the next call of `explain_no_triton` says what is wrong
        explain_no_triton(device)


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
