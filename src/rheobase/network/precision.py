"""The precision in which networks are computed."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


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
