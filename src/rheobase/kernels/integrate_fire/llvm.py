"""Integrate-and-fire on a CPU, by a compiled program that reads currents and writes spikes once.

Letters: T steps, N all neurons of the batch, M distinct thresholds.
"""

from collections.abc import Callable
from functools import cache
from math import lcm
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.kept import keep

# Neurons at a time: their membranes stay in the first-level cache for all steps.
BLOCK = 1 << 12


def supports(current: Tensor, membrane: Tensor, spikes: Tensor) -> bool:
    """Whether `run` supports the dtypes of these tensors."""
    return current.dtype == membrane.dtype and spikes.dtype in (torch.uint8, membrane.dtype)


def run(
    current_TN: Tensor,
    membrane_N: Tensor,
    threshold_M: Tensor,
    repeat: int,
    spikes_TN: Tensor,
    *,
    strict: bool,
    reset: str,
) -> None:
    """Fill `spikes_TN` block by block, updating `membrane_N` in place."""
    T, N = spikes_TN.shape
    pattern = keep(threshold_M, ("pattern", repeat), lambda: _repeat(threshold_M, repeat))
    program = _compile(membrane_N.itemsize, spikes_TN.itemsize, strict, reset == "subtract")
    tensors = current_TN, membrane_N, pattern, spikes_TN
    steps = (x.stride(0) * x.itemsize for x in (current_TN, spikes_TN))
    program(*(tensor.data_ptr() for tensor in tensors), T, *steps, pattern.numel(), N)


def _repeat(threshold_M: Tensor, repeat: int) -> Tensor:
    """Thresholds of as many neurons as a block has at least."""
    pattern = threshold_M.repeat_interleave(repeat)
    period = lcm(pattern.numel(), 16)
    return pattern.repeat(max(1, BLOCK // period) * period // pattern.numel())


@cache
def _compile(item: int, size: int, strict: bool, subtract: bool) -> Callable[..., Any]:
    """The program for potentials and spikes of this many bytes."""
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import BYTE, FLOAT, LANES, Program, long

    numbers = ("T", "current_step", "spikes_step", "period", "N")
    program = Program(("current", "membrane", "threshold", "spikes"), numbers)
    b, of, at = program.b, program.given, program.at
    number = FLOAT if item == 4 else ir.DoubleType()

    def least(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    def divide(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.sdiv(b.add(x, b.sub(y, long(1))), y)

    def advance(t: ir.Value, n: ir.Value, lanes: int) -> None:
        """Advance some neurons by a step, the first of them number n of its block."""
        neurons = ir.VectorType(number, lanes)
        place = at("membrane", (where, item), (n, item))
        threshold = program.load(at("threshold", (offset, item), (n, item)), neurons)
        step = b.mul(t, of["current_step"])
        current = program.load(at("current", (step, 1), (where, item), (n, item)), neurons)
        potential = b.fadd(program.load(place, neurons), current)
        fired, after = program.fire(potential, threshold, strict=strict, subtract=subtract)
        b.store(after, place, align=1)
        spikes = b.zext(fired, ir.VectorType(BYTE, lanes)) if size == 1 else b.uitofp(fired, neurons)
        step = b.mul(t, of["spikes_step"])
        b.store(spikes, at("spikes", (step, 1), (where, size), (n, size)), align=1)

    with program.loop(divide(of["N"], of["period"])) as row:
        start = b.mul(row, of["period"])
        length = least(of["period"], b.sub(of["N"], start))
        with program.loop(divide(length, long(BLOCK))) as part:
            offset = b.mul(part, long(BLOCK))
            where = b.add(start, offset)
            count = least(long(BLOCK), b.sub(length, offset))
            whole = b.mul(b.sdiv(count, long(LANES)), long(LANES))
            with program.loop(of["T"]) as t:
                with program.loop(b.sdiv(count, long(LANES))) as i:
                    advance(t, b.mul(i, long(LANES)), LANES)
                with program.loop(b.sub(count, whole)) as i:
                    advance(t, b.add(whole, i), 1)
    return program.finish()
