"""The errors of groups on a CPU, by a compiled program that reads currents once.

Letters: T steps, B batch, C channels, N all neurons of the batch, P parameters, M distinct values of each.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rheobase.kernels.group_fire import GroupRule
from rheobase.kernels.group_fire.llvm import ALIKE, BLOCK, Form, fire, flat_rule
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

    (T, C), N = out.shape, membrane[0].numel()
    # A parameter that differs by channel: so the others do, too, or by neuron.
    channels = membrane.new_zeros(C, *[1] * (membrane.dim() - 2))
    form, table_PM, repeat, reaches_T = flat_rule(rule, membrane, 0, T, channels)
    each = table_PM.shape[1] > C or N // C < ALIKE
    if each:
        table_PM = table_PM.repeat_interleave(repeat, 1)
        table_PM = table_PM.repeat(1, N // table_PM.shape[1])
    M, rows = table_PM.shape[1], 1 if each else C
    sent, activation = torch.zeros_like(membrane), activation.contiguous()
    current_TN, rate = (
        flat_steps(current, membrane, T),
        torch.tensor(1 / unit, dtype=torch.float64, device="cpu"),
    )
    with compiling:
        program = _compile(membrane.itemsize, form, each)

    def work(first: int, last: int) -> Tensor:
        sums_TM = torch.zeros(T, M, 1 if each else LANES, dtype=torch.int64, device="cpu")
        states = (tensor[first:last] for tensor in (membrane, sent, activation))
        tensors = current_TN[:, first * N :], *states, table_PM, reaches_T, rate, sums_TM
        step = current_TN.stride(0) * current_TN.itemsize
        program(*(tensor.data_ptr() for tensor in tensors), T, step, M, rows, N // rows, last - first)
        return sums_TM.view(T, C, -1).sum(2)

    out += sum(share(work, len(membrane)))


@cache
def _compile(item: int, form: Form, each: bool) -> Callable[..., Any]:
    """The program for numbers of this many bytes.

    With `each`, a row is a sample, and each of its neurons has its own parameters and sums. Without, it is a
    channel of a sample: its neurons share their parameters, and there are `LANES` sums.
    """
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import FLOAT, LANES, LONG, Program, long

    pointers = ("current", "membrane", "sent", "activation", "table", "reaches", "rate", "sums")
    program = Program(pointers, ("T", "current_step", "M", "rows", "size", "B"))
    b, of, at = program.b, program.given, program.at
    number = FLOAT if item == 4 else ir.DoubleType()

    def advance(t: ir.Value, n: ir.Value, lanes: int) -> None:
        """Advance some neurons by a step, the first of them number n of its row."""
        kind, where = ir.VectorType(number, lanes), b.add(start, n)
        wide, counts = ir.VectorType(ir.DoubleType(), lanes), ir.VectorType(LONG, lanes)

        def among(p: ir.Value) -> ir.Value:
            """The place of the values of these neurons among those of a parameter or a step."""
            return b.add(b.mul(p, of["M"]), n if each else row)

        def own(p: ir.Value) -> ir.Value:
            place = at("table", (among(p), item))
            return program.load(place, kind) if each else program.spread(program.load(place, number), lanes)

        potentials, nets = at("membrane", (where, item)), at("sent", (where, item))
        step = b.mul(t, of["current_step"])
        current = program.load(at("current", (step, 1), (where, item)), kind)
        u, net = b.fadd(program.load(potentials, kind), current), program.load(nets, kind)
        _, _, value, _ = fire(program, form, u, net, own, t)
        wanted = program.load(at("activation", (where, item)), kind)
        error = b.fsub(b.fmul(value, own(long(form.amplitude))), wanted)
        exact = error if item == 8 else b.fpext(error, wide)
        units = b.fptosi(b.fmul(exact, program.spread(rate, lanes)), counts)
        total = at("sums", (among(t), 8 if each else 8 * LANES))
        b.store(b.add(program.load(total, counts), units), total, align=1)
        u, net, _, _ = fire(program, form, b.fsub(u, error), net, own, t)
        b.store(u, potentials, align=1)
        b.store(net, nets, align=1)

    rate = program.load(at("rate"), ir.DoubleType())
    with program.loop(of["B"]) as sample, program.loop(of["rows"]) as row:
        start = b.mul(b.add(b.mul(sample, of["rows"]), row), of["size"])
        program.advance(of["size"], BLOCK, of["T"], advance)
    return program.finish()
