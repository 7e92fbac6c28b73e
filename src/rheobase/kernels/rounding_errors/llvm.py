"""The squared errors of rounding on a CPU, by a compiled program that reads values once for all thresholds.

Letters: C channels, N values of each, K thresholds.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.threads import compiling, share

# Values at a time: they stay in the first-level cache for all thresholds.
_BLOCK = 1 << 11


def run(values: Tensor, thresholds: Sequence[float], steps: int, unit: float, out: Tensor) -> None:
    """Increase `out`."""
    values, (C, N), K = values.contiguous(), values.shape, len(thresholds)
    ratios = [(steps / threshold, threshold / steps) for threshold in thresholds]
    table = torch.tensor(ratios, dtype=torch.float64, device="cpu")
    limits = torch.tensor([steps, 1 / unit], dtype=torch.float64, device="cpu")
    with compiling:
        program = _compile()

    def work(first: int, last: int) -> Tensor:
        from rheobase.kernels.llvm import LANES

        sums_CKL = torch.zeros(C, K, LANES, dtype=torch.int64, device="cpu")
        start = values.data_ptr() + first * values.itemsize
        pointers = start, table.data_ptr(), limits.data_ptr(), sums_CKL.data_ptr()
        program(*pointers, C, N, last - first, K)
        return sums_CKL.sum(2)

    for sums_CK in share(work, N, values.numel() * K):
        out += sums_CK.T


@cache
def _compile() -> Callable[..., Any]:
    """The program: of C rows, N values apart, it takes `count` values each."""
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import LANES, LONG, Program

    program = Program(("values", "table", "limits", "sums"), ("C", "N", "count", "K"))
    b, of, at = program.b, program.given, program.at
    double = ir.DoubleType()
    steps, rate = (program.load(at("limits", 8 * i), double) for i in range(2))

    def add(k: ir.Value, place: ir.Value, sums: ir.Value, lanes: int) -> None:
        """Add the errors of some values for threshold k."""
        kind, counts = ir.VectorType(double, lanes), ir.VectorType(LONG, lanes)
        up, down = (
            program.spread(program.load(at("table", (k, 16), 8 * i), double), lanes) for i in range(2)
        )
        value, zero, most = program.load(place, kind), ir.Constant(kind, None), program.spread(steps, lanes)
        level = b.fmul(value, up)
        level = b.select(b.fcmp_ordered("<", level, zero), zero, level)
        level = b.select(b.fcmp_ordered(">", level, most), most, level)
        level = program.call(f"llvm.floor.v{lanes}f64", level, result=kind)
        error = b.fsub(b.fmul(level, down), value)
        units = b.fptosi(b.fmul(b.fmul(error, error), program.spread(rate, lanes)), counts)
        b.store(b.add(program.load(sums, counts), units), sums, align=1)

    with (
        program.loop(of["C"]) as c,
        program.blocks(of["count"], _BLOCK) as (first, length),
        program.loop(of["K"]) as k,
    ):
        sums = at("sums", (b.add(b.mul(c, of["K"]), k), 8 * LANES))
        row = at("values", (b.add(b.mul(c, of["N"]), first), 8))
        program.vectors(length, lambda n, lanes: add(k, program.move(row, (n, 8)), sums, lanes))
    return program.finish()
