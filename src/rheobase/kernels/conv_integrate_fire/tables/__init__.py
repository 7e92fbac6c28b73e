"""A convolution that drives integrate-and-fire neurons, by sums of weights in tables (AVX-512).

Spikes are 0 or 1, so that a few of them select one of few sums: looking it up is faster than multiplying.
Currents are not stored: see `program.py`. It needs the package llvmlite, which includes a compiler.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns, Q positions
of a few images.
"""

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
    from rheobase.kernels.conv_integrate_fire.tables.program import TableLayer

# Bytes of the tables of a layer: larger ones are not in a cache when they are read again.
LARGEST = 10 << 20
# Positions of the images computed together, which all use a table that was read, unless one image has more.
POSITIONS = 512
# Registers of positions computed together with eight outputs: so many that the sums fit the registers.
REGISTERS = 3
# Bytes of places that stay in the first-level cache for all outputs.
PLACES = 24 << 10


def supports(p: Problem) -> bool:
    """Whether `run` can solve a problem."""
    _, _, N, Y, X = p.out.shape
    return (
        p.weight.dtype == torch.int8
        and p.spikes.dtype == p.out.dtype == torch.uint8
        and p.weight.shape[1] % 16 == 0
        and (N in (16, 32, 48) or N % 64 == 0)
        and Y * X % 8 == 0
        and X <= 64
        and all(size == 1 for size in p.threshold.shape[-2:])
        and p.out.movedim(2, -1).is_contiguous()
        and p.membrane.movedim(1, -1).is_contiguous()
        and (p.residual is None or (p.residual.dtype == torch.uint8 and p.residual.dim() == p.out.dim()))
        and explain_no_avx512() is None
        and p.weight.numel() * 16 <= LARGEST
        and fits_16_bits(p.weight)
        and (p.binary or all(int(x.max()) <= 1 for x in (p.spikes, p.residual) if x is not None))
    )


def run(p: Problem) -> None:
    """Fill `out`, updating `membrane` and `totals` in place."""
    from rheobase.kernels.conv_integrate_fire.tables.program import LOOKUPS, PERIOD, compile_layer

    report_routine("tables")
    T, B, N, Y, X = p.out.shape
    images = -(-B // -(-B // max(1, POSITIONS // (Y * X))))
    layer = _describe(p, images)
    core = layer.core
    Q = -(-images * Y * X // core.step) * core.step
    periods = -(-len(layer.seen) // PERIOD)
    tile = max(2, PLACES // (64 * core.registers * layer.lookups))
    totals = None if p.totals is None else p.totals.contiguous()

    spikes = p.spikes.movedim(2, -1).contiguous()
    residual = p.membrane if p.residual is None else p.residual.movedim(2, -1).contiguous()
    numbers = [p.vector(p.bias, 0), p.vector(p.residual_scale, 1), p.vector(p.threshold, 0)]
    tables = keep(p.weight, ("tables", layer.wide), lambda: tabulate(p.weight, layer))
    with compiling:
        program = compile_layer(layer)

    def work(first: int, last: int) -> None:
        def words(count: int) -> Tensor:
            return torch.empty(count, dtype=torch.int16, device="cpu")

        rows, columns = layer.padded
        given = [
            *(spikes, p.membrane, residual, p.out, p.membrane if totals is None else totals),
            words(max(layer.W * layer.C, X * N) // 16),
            words(layer.C // 16 * rows * columns).zero_(),
            words(periods * PERIOD * Q).zero_(),
            words(tile * periods * LOOKUPS * core.registers * 32),
            *(tables, *numbers),
            words(N // 16 * Q),
            p.membrane.new_zeros(N * Q),
            words(N // 16 * Q),
        ]
        sizes = (T, B, first, last, images, Q, periods, layer.lookups, N // 8, tile)
        program(*(tensor.data_ptr() for tensor in given), *sizes)

    share(work, B, p.weight[0].numel() * p.out.numel())
    if p.totals is not None and totals is not None and totals is not p.totals:
        p.totals.copy_(totals)


def tabulate(weight: Tensor, layer: "TableLayer") -> Tensor:
    """The sums of five weights for all 32 selections of them: (N / 8, lookups, 8, 32)."""
    taken = [weight[:, 16 * word : 16 * word + 16, *tap] for word, tap in layer.seen]
    flat = torch.cat(taken, 1).short()
    flat = F.pad(flat, (0, layer.lookups * 5 - flat.shape[1])).view(-1, 8, layer.lookups, 5)
    places = torch.arange(32, dtype=torch.int16, device="cpu")
    sums = flat.new_zeros(*flat.shape[:3], 32)
    for bit in range(5):
        sums += flat[..., bit, None] * ((places >> bit) & 1)
    return sums.movedim(2, 1).contiguous()


def _describe(p: Problem, images: int) -> "TableLayer":
    from rheobase.kernels.conv_integrate_fire.tables.program import Core, TableLayer

    registers = -(-images * p.out[0, 0, 0].numel() // 32)
    core = Core(p.strict, p.reset == "subtract", p.residual is not None, min(REGISTERS, registers))
    return TableLayer(**vars(Windows.of(p)), core=core, totals=p.totals is not None)
