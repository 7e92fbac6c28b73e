"""The errors of groups on a CPU, by a compiled program that reads currents once.

Letters: T steps, B batch, C channels, N all neurons of the batch, P parameters, M distinct values of each.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.group_fire import GroupRule
from rheobase.kernels.group_fire.llvm import BLOCK, Form, fire, flat_rule
from rheobase.kernels.rows import flat_steps
from rheobase.kernels.threads import compiling, share


def supports(current: Tensor, membrane: Tensor, activation: Tensor) -> bool:
    """Whether `run` supports the dtypes and the memory formats of these tensors."""
    alike = current.dtype == activation.dtype == membrane.dtype
    return alike and membrane.dtype in (torch.float32, torch.float64) and membrane.is_contiguous()


def run(
    current: Tensor, membrane: Tensor, activation: Tensor, rule: GroupRule, unit: float, out: Tensor
) -> None:
    """Increase `out`, updating `membrane` in place."""
    from rheobase.kernels.llvm import LANES

    (T, C), size = out.shape, prod(membrane.shape[2:])
    # A parameter that differs by channel: so the others do, too, or by neuron.
    channels = membrane.new_zeros(C, *[1] * (membrane.dim() - 2))
    form, table_PM, repeat, reaches_T = flat_rule(rule, membrane, 0, T, channels)
    each = repeat == 1 and table_PM.shape[1] > C
    sent, activation = torch.zeros_like(membrane), activation.contiguous()
    current_TN, rate = flat_steps(current, membrane, T), torch.tensor(1 / unit, dtype=torch.float64)
    with compiling:
        program = _compile(membrane.itemsize, form, each)

    def work(first: int, last: int) -> Tensor:
        sums = torch.zeros(T, C, LANES, dtype=torch.int64)
        begin = first * C * size
        states = (tensor[first:last] for tensor in (membrane, sent, activation))
        tensors = current_TN[:, begin:], *states, table_PM, reaches_T, rate, sums
        step = current_TN.stride(0) * current_TN.itemsize
        program(*(tensor.data_ptr() for tensor in tensors), T, step, table_PM.shape[1], C, size, last - first)
        return sums.sum(2)

    out += sum(share(work, len(membrane)))


@cache
def _compile(item: int, form: Form, each: bool) -> Callable[..., Any]:
    """The program for numbers of this many bytes, and for parameters of channels or of each neuron."""
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import FLOAT, LANES, LONG, Program, long

    pointers = ("current", "membrane", "sent", "activation", "table", "reaches", "rate", "sums")
    program = Program(pointers, ("T", "current_step", "M", "C", "size", "B"))
    b, of, at = program.b, program.given, program.at
    number = FLOAT if item == 4 else ir.DoubleType()

    def parameter(p: ir.Value, n: ir.Value, lanes: int) -> ir.Value:
        """Parameter number p of some neurons, the first of them number n of its channel."""
        kind = ir.VectorType(number, lanes) if each else number
        own = b.add(b.mul(channel, of["size"]), n) if each else channel
        value = program.load(at("table", (b.add(b.mul(p, of["M"]), own), item)), kind)
        return value if each else program.spread(value, lanes)

    def advance(t: ir.Value, n: ir.Value, lanes: int) -> None:
        """Advance some neurons by a step, the first of them number n of its channel."""
        kind, where = ir.VectorType(number, lanes), b.add(start, n)
        wide, counts = ir.VectorType(ir.DoubleType(), lanes), ir.VectorType(LONG, lanes)

        def own(p: ir.Value) -> ir.Value:
            return parameter(p, n, lanes)

        potentials, nets = at("membrane", (where, item)), at("sent", (where, item))
        step = b.mul(t, of["current_step"])
        current = program.load(at("current", (step, 1), (where, item)), kind)
        u, net = b.fadd(program.load(potentials, kind), current), program.load(nets, kind)
        _, _, value, _ = fire(program, form, u, net, own, t)
        wanted = program.load(at("activation", (where, item)), kind)
        error = b.fsub(b.fmul(value, own(long(form.amplitude))), wanted)
        exact = error if item == 8 else b.fpext(error, wide)
        units = b.fptosi(b.fmul(exact, program.spread(rate, lanes)), counts)
        total = at("sums", (b.add(b.mul(t, of["C"]), channel), 8 * LANES))
        b.store(b.add(program.load(total, counts), units), total, align=1)
        u, net, _, _ = fire(program, form, b.fsub(u, error), net, own, t)
        b.store(u, potentials, align=1)
        b.store(net, nets, align=1)

    rate = program.load(at("rate"), ir.DoubleType())
    with program.loop(b.mul(of["B"], of["C"])) as row:
        channel, start = b.srem(row, of["C"]), b.mul(row, of["size"])
        program.advance(of["size"], BLOCK, of["T"], advance)
    return program.finish()
