"""Running means in Triton: a program takes a stretch of values over all steps.

Letters: T steps, N all values of one step.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.launching import launch

_BLOCK = 1024


@triton.jit(do_not_specialize=["T", "before"])
def _running_mean(signal, total, out, T, N, before, unit, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    accumulated = tl.load(total + n, mask=inside, other=0.0)
    for t in range(T):
        accumulated += tl.load(signal + t * N + n, mask=inside, other=0).to(tl.float32)
        taken = tl.full((BLOCK,), 0, tl.int32) + (before + t + 1)
        tl.store(out + t * N + n, tl.div_rn(accumulated, taken.to(tl.float32)) * unit, mask=inside)
    tl.store(total + n, accumulated, mask=inside)


def run(signal: Tensor, total: Tensor, before: int, unit: float) -> Tensor:
    """Compute, as `running_mean` says."""
    last = signal.dim() == 5 and signal.flatten(0, 1).is_contiguous(memory_format=torch.channels_last)
    flat = (signal.movedim(2, -1) if last else signal).contiguous()
    ordered = total.movedim(1, -1) if last else total
    state = ordered.contiguous()
    out = torch.empty(flat.shape, dtype=torch.float32, device=signal.device)
    T, N = len(flat), state.numel()
    if out.numel():
        with torch.cuda.device_of(signal):
            launch(
                _running_mean,
                (triton.cdiv(N, _BLOCK),),
                flat,
                state,
                out,
                T,
                N,
                before,
                float(unit),
                BLOCK=_BLOCK,
            )
    if state is not ordered:
        ordered.copy_(state)
    return out.movedim(-1, 2) if last else out
