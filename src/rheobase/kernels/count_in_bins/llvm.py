"""Counts in bins on a CPU, by a compiled program that reads every value once.

The first bits of a number in single precision name its bin, up to one edge among the numbers that begin so.

Letters: C channels, P signs, J bins.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.kept import keep
from rheobase.kernels.rows import memory_order
from rheobase.kernels.threads import compiling, count_threads, share

# The bits behind those that are looked up: 15 of the fraction's 23.
_DROPPED = 15
_STARTS = 1 << (31 - _DROPPED)
# Channels at a time: the bins that they have values in fit the second-level cache.
_CHANNELS = 64
# The products that take as long as one value.
_WORK = 64


def supports(values: Tensor, edges: Tensor) -> bool:
    """Whether `run` supports values and edges."""
    return values.dtype == torch.float32 and _look_up(edges) is not None


def run(values: Tensor, edges: Tensor, channels: int | None, out: Tensor) -> None:
    """Increase `out`."""
    table = _look_up(edges)
    assert table is not None
    C, P, J = out.shape
    order = memory_order(values)
    values = values.permute(order).contiguous()
    place = 0 if channels is None else order.index(channels)
    outer = 1 if channels is None else prod(values.shape[:place])
    inner = values.numel() // (outer * C)
    with compiling:
        program = _compile(out.itemsize, P)

    def count(first: int, size: int, channel: int, some: int, inner: int, out: Tensor) -> None:
        """Count in some values of each of some channels."""
        none = out.new_empty(1)
        start = values.data_ptr() + first * values.itemsize
        pointers = start, table.data_ptr(), out[channel].data_ptr(), none.data_ptr()
        program(*pointers, size, C * inner, some, inner, J)

    def by_channel(first: int, last: int) -> None:
        count(first * inner, outer, first, last - first, inner, out)

    def by_value(first: int, last: int) -> Tensor:
        own = torch.zeros_like(out)
        count(first, 1, 0, 1, last - first, own)
        return own

    if count_threads() <= C:
        share(by_channel, C, values.numel() * _WORK)
    elif C == 1:
        for own in share(by_value, values.numel(), values.numel() * _WORK):
            out += own
    else:
        by_channel(0, C)


def _look_up(edges: Tensor) -> Tensor | None:
    """For every start of a number: the bin of the first that begins so, and the bits of an edge among them.

    None where several edges lie among the numbers of one start.
    """

    def make() -> Tensor | None:
        bits = edges.view(torch.int32).long()
        starts = torch.arange(_STARTS, device="cpu") << _DROPPED
        bins = torch.searchsorted(bits, starts, right=True)
        ends = torch.searchsorted(bits, starts + (1 << _DROPPED))
        if (ends - bins).amax() > 1:
            return None
        none = torch.full_like(bits[:1], torch.iinfo(torch.int32).max)
        edge = torch.where(ends > bins, torch.cat([bits, none])[bins], none)
        return torch.stack([bins - 1, edge], 1).int()

    return keep(edges, "starts", make)


@cache
def _compile(item: int, signs: int) -> Callable[..., Any]:
    """The program for counts of this many bytes.

    Of `outer` rows, `step` values apart, it takes those of C channels, `inner` next to each other.
    """
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import LONG, WORD, Program

    program = Program(("values", "table", "out", "none"), ("outer", "step", "C", "inner", "J"))
    b, of, count = program.b, program.given, ir.IntType(8 * item)
    magnitude, dropped = ir.Constant(WORD, 2**31 - 1), ir.Constant(WORD, _DROPPED)
    with (
        program.blocks(of["C"], _CHANNELS) as (first, length),
        program.loop(of["outer"]) as row,
        program.loop(length) as some,
    ):
        c = b.add(first, some)
        values = program.at("values", (b.add(b.mul(row, of["step"]), b.mul(c, of["inner"])), 4))
        counts = program.at("out", (b.mul(c, of["J"]), signs * item))
        with program.loop(of["inner"]) as i:
            number = program.load(program.move(values, (i, 4)), WORD)
            bits = b.and_(number, magnitude)
            entry = program.at("table", (b.zext(b.lshr(bits, dropped), LONG), 8))
            beyond = b.icmp_signed(">=", bits, program.load(program.move(entry, 4), WORD))
            place = b.add(program.load(entry, WORD), b.zext(beyond, WORD))
            counted, place = b.icmp_signed(">=", place, ir.Constant(WORD, 0)), b.sext(place, LONG)
            if signs == 2:
                negative = b.zext(b.lshr(number, ir.Constant(WORD, 31)), LONG)
                place = b.add(place, b.mul(negative, of["J"]))
            else:
                counted = b.and_(counted, b.icmp_signed(">=", number, ir.Constant(WORD, 0)))
            target = b.select(counted, program.move(counts, (place, item)), of["none"])
            b.store(b.add(program.load(target, count), ir.Constant(count, 1)), target, align=1)
    return program.finish()
