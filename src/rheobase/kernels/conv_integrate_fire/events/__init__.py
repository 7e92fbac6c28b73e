"""A convolution that drives integrate-and-fire neurons, by adding up the weights of inputs that spiked.

Where few inputs spike that takes fewer operations than a product with every input, and the sums are the same
to the bit: products with 0 add nothing. Currents are not stored: see `program.py`. It needs AVX-512 and the
package llvmlite, which includes a compiler.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.conv_integrate_fire.avx512 import explain_no_avx512
from rheobase.kernels.conv_integrate_fire.packing import fits_16_bits
from rheobase.kernels.conv_integrate_fire.problem import Problem
from rheobase.kernels.conv_integrate_fire.windows import Windows
from rheobase.kernels.kept import keep
from rheobase.kernels.routines import report_routine
from rheobase.kernels.threads import compiling, share

if TYPE_CHECKING:
    from rheobase.kernels.conv_integrate_fire.events.program import EventLayer

# The part of inputs that spike up to which this is faster than other routines, by the numbers that sums are.
FEW = {"float32": 0.5, "int16": 0.15, "int32": 0.08}


def supports(p: Problem) -> bool:
    """Whether `run` can solve a problem."""
    kinds = (torch.uint8,) if p.residual_scale is not None else (torch.uint8, p.membrane.dtype)
    return (
        p.weight.dtype != torch.float16
        and p.spikes.dtype == p.out.dtype == torch.uint8
        and p.weight.shape[1] % 16 == 0
        and len(p.weight) % 16 == 0
        and p.weight[0].numel() < 2**16
        and all(size == 1 for size in p.threshold.shape[-2:])
        and p.out.movedim(2, -1).is_contiguous()
        and p.membrane.movedim(1, -1).is_contiguous()
        and (p.residual is None or (p.residual.dtype in kinds and p.residual.dim() == p.out.dim()))
        and explain_no_avx512() is None
        and (p.binary or all(int(x.max()) <= 1 for x in (p.spikes, p.residual) if x is not None))
        and few_spike(p)
    )


def few_spike(p: Problem) -> bool:
    """Whether few inputs spike, judged by the last step of the first sample."""
    sample = p.spikes[-1, 0]
    return int(torch.count_nonzero(sample)) <= FEW[_find_sums(p)] * sample.numel()


def _find_sums(p: Problem) -> str:
    """What the sums of weights are."""
    if not p.integer:
        return "float32"
    return "int16" if fits_16_bits(p.weight) else "int32"


def run(p: Problem) -> None:
    """Fill `out`, updating `membrane` and `totals` in place."""
    from rheobase.kernels.conv_integrate_fire.events.program import compile_layer

    report_routine("events")
    T, B, N, _, X = p.out.shape
    layer = _describe(p)
    totals = None if p.totals is None else p.totals.contiguous()

    def arrange() -> Tensor:
        kind: torch.dtype = getattr(torch, layer.sums)
        return F.pad(p.weight.to(kind).permute(2, 3, 1, 0).reshape(layer.window, N), (0, 0, 0, 1))

    given = [
        p.spikes.movedim(2, -1).contiguous(),
        keep(p.weight, "events", arrange),
        p.vector(p.bias, 0),
        p.vector(p.residual_scale, 1),
        p.vector(p.threshold, 0),
        p.membrane,
        p.membrane if p.residual is None else p.residual.movedim(2, -1).contiguous(),
        p.out,
        p.membrane if totals is None else totals,
    ]
    with compiling:
        program = compile_layer(layer)

    def work(first: int, last: int) -> None:
        rows = layer.H + 2 * layer.padding[0]
        bits = torch.zeros(rows * layer.row + 8, dtype=torch.uint8, device="cpu")
        listed = torch.empty(X * (layer.window + 8) + 64, dtype=torch.int16, device="cpu")
        ends = torch.zeros(X + 1, dtype=torch.int64, device="cpu")
        program(*(tensor.data_ptr() for tensor in (*given, bits, listed, ends)), T, B, first, last)

    share(work, B, p.weight[0].numel() * p.out.numel())
    if p.totals is not None and totals is not None and totals is not p.totals:
        p.totals.copy_(totals)


def _describe(p: Problem) -> "EventLayer":
    from rheobase.kernels.conv_integrate_fire.events.program import EventLayer

    residual = "" if p.residual is None else "count" if p.residual.dtype == torch.uint8 else "current"
    windows = Windows.of(p)
    if p.weight.dtype == torch.float32:  # sums in single precision keep their order
        windows = replace(windows, wide=windows.C)
    given = vars(windows) | {"sums": _find_sums(p), "residual": residual, "totals": p.totals is not None}
    return EventLayer(**given, strict=p.strict, subtract=p.reset == "subtract")
