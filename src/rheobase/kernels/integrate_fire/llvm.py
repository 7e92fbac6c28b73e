"""Integrate-and-fire by a program compiled for the CPU, which reads currents and writes spikes once.

Letters: T steps, N all neurons of the batch, M distinct thresholds.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from math import lcm
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.kept import keep

# Neurons at a time: their membranes stay in the first-level cache for all steps.
BLOCK = 1 << 12


def supports(current_TN: Tensor, membrane_N: Tensor, spikes_TN: Tensor) -> bool:
    """Whether `run` supports these tensors."""
    return (
        current_TN.dtype == membrane_N.dtype == torch.float32
        and spikes_TN.dtype in (torch.uint8, torch.float32)
        and membrane_N.numel() % 16 == 0
        and find_spec("llvmlite") is not None
    )


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
    program = _compile(spikes_TN.dtype == torch.uint8, strict, reset == "subtract")
    tensors = current_TN, membrane_N, pattern, spikes_TN
    steps = (x.stride(0) * x.itemsize for x in (current_TN, spikes_TN))
    program(*(tensor.data_ptr() for tensor in tensors), T, *steps, pattern.numel(), N)


def _repeat(threshold_M: Tensor, repeat: int) -> Tensor:
    """Thresholds of as many neurons as a block has at least."""
    pattern = threshold_M.repeat_interleave(repeat)
    period = lcm(pattern.numel(), 16)
    return pattern.repeat(max(1, BLOCK // period) * period // pattern.numel())


@cache
def _compile(small: bool, strict: bool, subtract: bool) -> Callable[..., Any]:
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import BYTE, FLOAT, LANES, Program, long

    numbers = ("T", "current_step", "spikes_step", "period", "N")
    program = Program(("current", "membrane", "threshold", "spikes"), numbers)
    b, of, at = program.b, program.given, program.at
    neurons = ir.VectorType(FLOAT, LANES)
    size = 1 if small else 4

    def least(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.select(b.icmp_signed("<", x, y), x, y)

    def divide(x: ir.Value, y: ir.Value) -> ir.Value:
        return b.sdiv(b.add(x, b.sub(y, long(1))), y)

    with program.loop(divide(of["N"], of["period"])) as row:
        start = b.mul(row, of["period"])
        length = least(of["period"], b.sub(of["N"], start))
        with program.loop(divide(length, long(BLOCK))) as part:
            offset = b.mul(part, long(BLOCK))
            where = b.add(start, offset)
            count = b.sdiv(least(long(BLOCK), b.sub(length, offset)), long(LANES))
            with program.loop(of["T"]) as t, program.loop(count) as i:
                place = at("membrane", (where, 4), (i, 4 * LANES))
                threshold = program.load(at("threshold", (offset, 4), (i, 4 * LANES)), neurons)
                step = b.mul(t, of["current_step"])
                current = program.load(at("current", (step, 1), (where, 4), (i, 4 * LANES)), neurons)
                potential = b.fadd(program.load(place, neurons), current)
                fired, after = program.fire(potential, threshold, strict=strict, subtract=subtract)
                b.store(after, place, align=1)
                kind = ir.VectorType(BYTE if small else FLOAT, LANES)
                spikes = b.zext(fired, kind) if small else b.uitofp(fired, kind)
                step = b.mul(t, of["spikes_step"])
                b.store(spikes, at("spikes", (step, 1), (where, size), (i, size * LANES)), align=1)
    return program.finish()
