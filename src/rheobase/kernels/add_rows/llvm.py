"""Sums of selected rows on a CPU, by a compiled program that reads only those rows.

Letters: R sums, K rows of the table, N numbers of a row.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.threads import compiling, share

# Numbers of a row at a time: their sums stay in the first-level cache.
BLOCK = 1 << 10
# Rows that are added to the sums together.
_TOGETHER = 4


def run(spikes: Tensor, table: Tensor) -> Tensor:
    """Compute, as `add_rows` says."""
    R, N = len(spikes), table.shape[1]
    rows, begins = _list_rows(spikes)
    out = table.new_zeros(R, N, dtype=torch.float64)
    none = table.new_zeros(BLOCK)
    with compiling:
        program = _compile()

    def work(first: int, last: int) -> None:
        pointers = (tensor.data_ptr() for tensor in (rows, begins, table, none, out))
        program(*pointers, R, N, first, last)

    share(work, -(-N // BLOCK), len(rows) * N)
    return out


def _list_rows(spikes: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of each sum, filled up by −1 to a multiple of `_TOGETHER`, and where those of each sum begin.

    Behind the last beginning is the end.
    """
    sums, rows = spikes.nonzero().unbind(1)
    counts = torch.bincount(sums, minlength=len(spikes))
    before = F.pad(counts.cumsum(0), (1, 0))
    begins = F.pad((-(-counts // _TOGETHER) * _TOGETHER).cumsum(0), (1, 0))
    filled = rows.new_full((int(begins[-1]),), -1)
    filled[torch.arange(len(rows), device=rows.device) + (begins - before)[sums]] = rows
    return filled, begins


@cache
def _compile() -> Callable[..., Any]:
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import FLOAT, LONG, Program, long

    program = Program(("rows", "begins", "table", "none", "out"), ("R", "N", "first", "last"))
    b, of, at = program.b, program.given, program.at

    def add(places: list[ir.Value], sums: ir.Value, n: ir.Value, lanes: int) -> None:
        """Add numbers of several rows to their sums, from number n of a block on."""
        place = program.move(sums, (n, 8))
        total = program.load(place, ir.VectorType(ir.DoubleType(), lanes))
        for row in places:
            number = program.load(program.move(row, (n, 4)), ir.VectorType(FLOAT, lanes))
            total = b.fadd(total, b.fpext(number, total.type))
        b.store(total, place, align=1)

    with program.loop(b.sub(of["last"], of["first"])) as part:
        start = b.mul(b.add(of["first"], part), long(BLOCK))
        rest = b.sub(of["N"], start)
        width = program.least(rest, long(BLOCK))
        with program.loop(of["R"]) as r:
            begin, end = (program.load(at("begins", (r, 8), more), LONG) for more in (0, 8))
            groups = b.sdiv(b.sub(end, begin), long(_TOGETHER))
            sums = at("out", (b.add(b.mul(r, of["N"]), start), 8))
            with program.loop(groups) as group:
                places = []
                for i in range(_TOGETHER):
                    row = program.load(at("rows", (begin, 8), (group, 8 * _TOGETHER), 8 * i), LONG)
                    place = program.move(of["table"], (b.add(b.mul(row, of["N"]), start), 4))
                    places.append(b.select(b.icmp_signed("<", row, long(0)), of["none"], place))

                program.vectors(width, partial(add, places, sums))
    return program.finish()
