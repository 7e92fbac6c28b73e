"""Counts that follow targets, by a program compiled for the CPU, which reads targets and writes counts once.

Letters: T steps, B batch, N values of a sample.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.threads import compiling

# Values at a time: their counts stay in the first-level cache for all steps.
BLOCK = 1 << 12
_BYTES = (torch.uint8, torch.int8)
_FLOATS = (torch.float32, torch.float64)
# A block of such fan-outs adds up to less than 2^31.
_LARGEST_FAN_OUT = 1 << 18


def supports(target: Tensor, count: Tensor, out: Tensor | None, fan_out: Tensor | None) -> bool:
    """Whether `run` supports these tensors, flat or not."""
    dtypes = {x.dtype for x in (target, count, out) if x is not None}
    return dtypes <= {*_BYTES, *_FLOATS} and (fan_out is None or int(fan_out.max()) < _LARGEST_FAN_OUT)


def run(
    target_TBN: Tensor,
    count_BN: Tensor,
    sizes: int | None,
    out_TBN: Tensor | None,
    fan_out_N: Tensor | None,
    events_TB: Tensor,
    reached_TB: Tensor | None,
) -> None:
    """Move counts and add to `events_TB` and `reached_TB`."""
    T, B, N = target_TBN.shape
    dtypes = (None if x is None else x.dtype for x in (target_TBN, count_BN, out_TBN))
    with compiling:
        program = _compile(*dtypes, None if sizes is None else 2 ** (sizes - 1), fan_out_N is not None)
    synapses = None if fan_out_N is None else fan_out_N.to(torch.int32)
    tensors = [target_TBN, count_BN, out_TBN, synapses, events_TB, reached_TB]
    pointers = [count_BN.data_ptr() if x is None else x.data_ptr() for x in tensors]
    step = target_TBN.stride(0) * target_TBN.itemsize
    program(*pointers, T, B, N, step)


@cache
def _compile(
    target_kind: torch.dtype,
    count_kind: torch.dtype,
    out_kind: torch.dtype | None,
    largest: int | None,
    fan_out: bool,
) -> Callable[..., Any]:
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import BYTE, FLOAT, LANES, LONG, WORD, Program

    program = Program(("target", "count", "out", "fan_out", "events", "reached"), ("T", "B", "N", "step"))
    b, of, at = program.b, program.given, program.at
    wide = torch.float64 in (target_kind, count_kind)
    value, bits, fraction = (ir.DoubleType(), LONG, 52) if wide else (FLOAT, WORD, 23)
    # How many values changed, and the synapses they reached: of all vectors, and of the values after them.
    totals = {n: [b.alloca(ir.VectorType(WORD, n)) for _ in range(1 + fan_out)] for n in (LANES, 1)}

    def load(kind: torch.dtype, place: ir.Value, lanes: int) -> ir.Value:
        values = ir.VectorType(value, lanes)
        if kind in _BYTES:
            number = program.load(place, ir.VectorType(BYTE, lanes))
            return (b.uitofp if kind == torch.uint8 else b.sitofp)(number, values)
        if wide and kind == torch.float32:
            return b.fpext(program.load(place, ir.VectorType(FLOAT, lanes)), values)
        return program.load(place, values)

    def store(kind: torch.dtype, x: ir.Value, place: ir.Value, lanes: int) -> None:
        if kind in _BYTES:
            x = b.trunc(b.fptosi(x, ir.VectorType(WORD, lanes)), ir.VectorType(BYTE, lanes))
        elif kind == torch.float32 and wide:
            x = b.fptrunc(x, ir.VectorType(FLOAT, lanes))
        elif kind == torch.float64 and not wide:
            x = b.fpext(x, ir.VectorType(ir.DoubleType(), lanes))
        b.store(x, place, align=1)

    def increase(total: ir.Value, amount: ir.Value) -> None:
        b.store(b.add(b.load(total, typ=amount.type), amount), total)

    def add_up(total: ir.Value, lanes: int, place: ir.Value) -> None:
        found = b.load(total, typ=ir.VectorType(WORD, lanes))
        amount = program.load(place, LONG)
        for lane in range(lanes):
            amount = b.add(amount, b.zext(b.extract_element(found, ir.Constant(WORD, lane)), LONG))
        b.store(amount, place, align=1)

    def advance(n: ir.Value, lanes: int) -> None:
        """Advance some values by a step, the first of them number n of its block."""
        size = target_kind.itemsize
        target = load(target_kind, at("target", (step, 1), (where, size), (n, size)), lanes)
        size = count_kind.itemsize
        place = at("count", (where, size), (n, size))
        before = load(count_kind, place, lanes)
        changed = b.fcmp_ordered("!=", target, before)
        after = target
        if largest is not None:
            # The sign and the power of two of a number, without its fraction.
            whole = ir.VectorType(bits, lanes)
            power = b.and_(
                b.bitcast(b.fsub(target, before), whole), ir.Constant(whole, [-(1 << fraction)] * lanes)
            )
            event = b.bitcast(power, target.type)
            for sign, end in (("<", -float(largest)), (">", float(largest))):
                bound = ir.Constant(target.type, [end] * lanes)
                event = b.select(b.fcmp_ordered(sign, event, bound), bound, event)
            after = b.fadd(before, event)
        store(count_kind, after, place, lanes)
        if out_kind is not None:
            store(out_kind, after, at("out", (row, out_kind.itemsize), (n, out_kind.itemsize)), lanes)
        words = ir.VectorType(WORD, lanes)
        increase(totals[lanes][0], b.zext(changed, words))
        if fan_out:
            synapses = program.load(at("fan_out", (offset, 4), (n, 4)), words)
            increase(totals[lanes][1], b.select(changed, synapses, ir.Constant(words, None)))

    with program.loop(of["B"]) as sample:
        start = b.mul(sample, of["N"])
        with program.blocks(of["N"], BLOCK) as (offset, length):
            where = b.add(start, offset)
            with program.loop(of["T"]) as t:
                for lanes, places in totals.items():
                    for total in places:
                        b.store(ir.Constant(ir.VectorType(WORD, lanes), None), total)
                step = b.mul(t, of["step"])
                row = b.add(b.mul(b.mul(t, of["B"]), of["N"]), where)
                program.vectors(length, advance)
                place_TB = b.add(b.mul(t, of["B"]), sample)
                for lanes, places in totals.items():
                    for total, name in zip(places, ("events", "reached"), strict=False):
                        add_up(total, lanes, at(name, (place_TB, 8)))
    return program.finish()
