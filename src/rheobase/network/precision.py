"""The precision in which networks are computed."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from rheobase.kernels import widest_float


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disable autocast and TF32 for convolutions and matrix products."""
    if device.type != "cuda":
        casts = torch.amp.is_autocast_available(device.type)
        with torch.autocast(device.type, enabled=False) if casts else nullcontext():
            yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    try:
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def has_double(device: torch.device) -> bool:
    """Whether a device has double precision."""
    return widest_float(device) == torch.float64


def require_membranes(dtype: torch.dtype) -> None:
    """Refuse the precision of a network that is too coarse for membranes."""
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the network is in {dtype}, which is too coarse for membranes: use snn.float()")


def require_double(device: torch.device, what: str) -> None:
    """Raise an error if a device has no double precision, in which something is computed."""
    if not has_double(device):
        raise ValueError(
            f"{what} computes in double precision, which {device} does not have: move the network and the "
            "data to the CPU, as with snn.cpu()"
        )
