"""Counts that follow targets, by a program compiled for the CPU, which reads targets and writes counts once.

Letters: T steps, B batch, N values of a sample.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Values at a time: their counts stay in the first-level cache for all steps.
BLOCK = 1 << 12
_KINDS = (torch.uint8, torch.float32)
# A block of such fan-outs adds up to less than 2^31.
_LARGEST_FAN_OUT = 1 << 18


def supports(target: Tensor, count: Tensor, out: Tensor | None, fan_out: Tensor | None) -> bool:
    """Whether `run` supports these tensors, flat or not."""
    given = [target, count, *([] if out is None else [out])]
    return (
        all(x.dtype in _KINDS for x in given)
        and count[:1].numel() % 16 == 0
        and (fan_out is None or int(fan_out.max()) < _LARGEST_FAN_OUT)
    )


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
    small = [None if x is None else x.dtype == torch.uint8 for x in (target_TBN, count_BN, out_TBN)]
    program = _compile(*small, None if sizes is None else 2 ** (sizes - 1), fan_out_N is not None)
    synapses = None if fan_out_N is None else fan_out_N.to(torch.int32)
    tensors = [target_TBN, count_BN, out_TBN, synapses, events_TB, reached_TB]
    pointers = [count_BN.data_ptr() if x is None else x.data_ptr() for x in tensors]
    step = target_TBN.stride(0) * target_TBN.itemsize
    program(*pointers, T, B, N, step)


@cache
def _compile(
    small_target: bool, small_count: bool, small_out: bool | None, largest: int | None, fan_out: bool
) -> Callable[..., Any]:
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import BYTE, FLOAT, LANES, LONG, WORD, Program, long

    program = Program(("target", "count", "out", "fan_out", "events", "reached"), ("T", "B", "N", "step"))
    b, of, at = program.b, program.given, program.at
    numbers, words, values = (ir.VectorType(kind, LANES) for kind in (BYTE, WORD, FLOAT))
    totals = [b.alloca(words) for _ in range(1 + fan_out)]

    def load(small: bool, place: ir.Value) -> ir.Value:
        return b.uitofp(program.load(place, numbers), values) if small else program.load(place, values)

    def store(small: bool, x: ir.Value, place: ir.Value) -> None:
        b.store(b.trunc(b.fptosi(x, words), numbers) if small else x, place, align=1)

    def every(value: float) -> ir.Constant:
        return ir.Constant(values, [value] * LANES)

    def bytes_of(small: bool | None) -> int:
        return 1 if small else 4

    def add_up(total: ir.Value, place: ir.Value) -> None:
        lanes = b.load(total, typ=words)
        amount = b.zext(b.extract_element(lanes, ir.Constant(WORD, 0)), LONG)
        for lane in range(1, LANES):
            amount = b.add(amount, b.zext(b.extract_element(lanes, ir.Constant(WORD, lane)), LONG))
        b.store(b.add(program.load(place, LONG), amount), place, align=1)

    with program.loop(of["B"]) as sample:
        start = b.mul(sample, of["N"])
        parts = b.sdiv(b.add(of["N"], long(BLOCK - 1)), long(BLOCK))
        with program.loop(parts) as part:
            offset = b.mul(part, long(BLOCK))
            left = b.sub(of["N"], offset)
            length = b.select(b.icmp_signed("<", left, long(BLOCK)), left, long(BLOCK))
            where = b.add(start, offset)
            with program.loop(of["T"]) as t:
                for total in totals:
                    b.store(ir.Constant(words, None), total)
                step = b.mul(t, of["step"])
                row = b.add(b.mul(b.mul(t, of["B"]), of["N"]), where)
                with program.loop(b.sdiv(length, long(LANES))) as i:
                    size = bytes_of(small_target)
                    target = load(small_target, at("target", (step, 1), (where, size), (i, size * LANES)))
                    size = bytes_of(small_count)
                    place = at("count", (where, size), (i, size * LANES))
                    before = load(small_count, place)
                    changed = b.fcmp_ordered("!=", target, before)
                    after = target
                    if largest is not None:
                        # The sign and the power of two of a number, without its fraction.
                        mask = ir.Constant(words, [-(1 << 23)] * LANES)
                        event = b.bitcast(b.and_(b.bitcast(b.fsub(target, before), words), mask), values)
                        for sign, bound in (("<", every(-float(largest))), (">", every(float(largest)))):
                            event = b.select(b.fcmp_ordered(sign, event, bound), bound, event)
                        after = b.fadd(before, event)
                    store(small_count, after, place)
                    if small_out is not None:
                        size = bytes_of(small_out)
                        store(small_out, after, at("out", (row, size), (i, size * LANES)))
                    b.store(b.add(b.load(totals[0], typ=words), b.zext(changed, words)), totals[0])
                    if fan_out:
                        synapses = program.load(at("fan_out", (offset, 4), (i, 4 * LANES)), words)
                        reached = b.select(changed, synapses, ir.Constant(words, None))
                        b.store(b.add(b.load(totals[1], typ=words), reached), totals[1])
                place_TB = b.add(b.mul(t, of["B"]), sample)
                for total, name in zip(totals, ("events", "reached"), strict=False):
                    add_up(total, at(name, (place_TB, 8)))
    return program.finish()
