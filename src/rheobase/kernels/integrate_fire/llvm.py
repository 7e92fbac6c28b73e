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
from rheobase.kernels.threads import compiling

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
    with compiling:
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

    from rheobase.kernels.llvm import BYTE, FLOAT, Program, long

    numbers = ("T", "current_step", "spikes_step", "period", "N")
    program = Program(("current", "membrane", "threshold", "spikes"), numbers)
    b, of, at = program.b, program.given, program.at
    number = FLOAT if item == 4 else ir.DoubleType()

    def advance(t: ir.Value, n: ir.Value, lanes: int) -> None:
        """Advance some neurons by a step, the first of them number n of its period."""
        neurons, where = ir.VectorType(number, lanes), b.add(start, n)
        place = at("membrane", (where, item))
        threshold = program.load(at("threshold", (n, item)), neurons)
        step = b.mul(t, of["current_step"])
        current = program.load(at("current", (step, 1), (where, item)), neurons)
        potential = b.fadd(program.load(place, neurons), current)
        fired, after = program.fire(potential, threshold, strict=strict, subtract=subtract)
        b.store(after, place, align=1)
        spikes = b.zext(fired, ir.VectorType(BYTE, lanes)) if size == 1 else b.uitofp(fired, neurons)
        step = b.mul(t, of["spikes_step"])
        b.store(spikes, at("spikes", (step, 1), (where, size)), align=1)

    periods = b.sdiv(b.add(of["N"], b.sub(of["period"], long(1))), of["period"])
    with program.loop(periods) as row:
        start = b.mul(row, of["period"])
        program.advance(program.least(of["period"], b.sub(of["N"], start)), BLOCK, of["T"], advance)
    return program.finish()
