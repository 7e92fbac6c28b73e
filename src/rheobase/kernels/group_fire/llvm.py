"""Groups on a CPU, by a compiled program that reads currents and writes what is sent once.

Letters: T steps, N all neurons of the batch, P parameters, M distinct values of each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rheobase.kernels.group_fire.rule import GroupRule
from rheobase.kernels.rows import flat_out, flat_states, flat_steps, flat_table, memory_order
from rheobase.kernels.threads import compiling

if TYPE_CHECKING:
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import Program

# Loads a parameter of the neurons at hand.
Parameter = Callable[["ir.Value"], "ir.Value"]
# Neurons at a time: their state stays in the first-level cache for all steps.
BLOCK = 1 << 10
# Neurons with the same parameters that are worth a loop of their own.
ALIKE = 64


@dataclass(frozen=True)
class Form:
    """What of a rule its program depends on, and where the numbers of its table are."""

    members: int
    biased: bool
    returns: bool
    forgives: bool
    strict: bool

    @classmethod
    def of(cls, rule: GroupRule, biased: bool) -> "Form":
        """The form of a rule."""
        return cls(len(rule.sizes), biased, bool(rule.returns), rule.forgives, rule.strict)

    @property
    def amplitude(self) -> int:
        """The parameter behind the levels and the sizes; the biases of the steps are behind it."""
        return 2 * self.members


def flat_rule(
    rule: GroupRule, membrane: Tensor, before: int, steps: int, *others: Tensor
) -> tuple[Form, Tensor, int, Tensor]:
    """The form of a rule, its parameters (P, M) with others behind them, the repeats of each, and λ(t)."""
    bias = rule.bias[before : before + steps]
    table_PM, repeat = flat_table([*rule.levels, *rule.sizes, rule.amplitude, *bias, *others], membrane)
    if bias:
        table_PM = F.pad(table_PM, (0, 0, 0, steps - len(bias)))
    last = len(rule.returns) - 1
    reaches = [-rule.returns[min(before + t, last)] if rule.returns else 0.0 for t in range(steps)]
    return Form.of(rule, bool(bias)), table_PM, repeat, membrane.new_tensor(reaches)


def fire(
    program: "Program", form: Form, u: "ir.Value", net: "ir.Value", parameter: "Parameter", t: "ir.Value"
) -> "tuple[ir.Value, ir.Value, ir.Value, ir.Value]":
    """Fire once: the potentials, what was sent before and now in units of the amplitude, and the events."""
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import BYTE, long

    b, kind = program.b, u.type
    number, lanes = kind.element, kind.count
    item, bytes_ = 4 if number == ir.FloatType() else 8, ir.VectorType(BYTE, lanes)
    zero, value, count = (ir.Constant(k, None) for k in (kind, kind, bytes_))
    if form.biased:
        u = b.fsub(u, parameter(b.add(t, long(form.amplitude + 1))))
    for i in range(form.members):
        level, size = (parameter(long(p)) for p in (i, form.members + i))
        fired = b.fcmp_ordered(">" if form.strict else ">=", u, level)
        u = b.select(fired, b.fsub(u, level), u)
        value = b.select(fired, b.fadd(value, size), value)
        count = b.add(count, b.zext(fired, bytes_))
    half = b.fmul(size, ir.Constant(kind, [0.5] * lanes))
    if form.returns:
        reach = program.spread(program.load(program.at("reaches", (t, item)), number), lanes)
        back = b.and_(b.fcmp_ordered("<=", u, b.fmul(reach, level)), b.fcmp_ordered(">", net, half))
        u = b.select(back, b.fadd(u, level), u)
        value = b.select(back, b.fsub(value, size), value)
        count = b.add(count, b.zext(back, bytes_))
    net = b.fadd(net, value)
    if form.forgives:
        gone = b.and_(b.fcmp_ordered("<", net, half), b.fcmp_ordered("<", u, zero))
        u = b.select(gone, zero, u)
    return u, net, value, count


def supports(current: Tensor, membrane: Tensor, sent: Tensor, out: Tensor, events: Tensor | None) -> bool:
    """Whether `run` supports the dtypes and the memory formats of these tensors."""
    kind = membrane.dtype
    alike = current.dtype == sent.dtype == out.dtype == kind and kind in (torch.float32, torch.float64)
    written = [sent, out[0], *([] if events is None else [events[0]])]
    several = [dim for dim, size in enumerate(membrane.shape) if size > 1]
    dense = membrane.permute(memory_order(membrane)).is_contiguous()
    return (
        alike
        and dense
        and (events is None or events.dtype == torch.uint8)
        and all(tensor.stride(dim) == membrane.stride(dim) for tensor in written for dim in several)
    )


def run(
    current: Tensor,
    membrane: Tensor,
    sent: Tensor,
    rule: GroupRule,
    out: Tensor,
    events: Tensor | None,
    before: int,
) -> None:
    """Fill `out` and `events` block by block, updating `membrane` and `sent` in place."""
    steps = len(out)
    form, table_PM, repeat, reaches_T = flat_rule(rule, membrane, before, steps)
    spread = table_PM.shape[1] == 1 or repeat >= ALIKE
    if not spread:
        table_PM, repeat = table_PM.repeat_interleave(repeat, 1), 1
    elif table_PM.shape[1] == 1:
        repeat = membrane.numel()
    membrane_N, sent_N = flat_states(membrane, sent)
    current_TN, out_TN = flat_steps(current, membrane, steps), flat_out(out, membrane)
    events_TN = out_TN if events is None else flat_out(events, membrane)
    with compiling:
        program = _compile(membrane.itemsize, form, spread, events is not None)
    tensors = current_TN, membrane_N, sent_N, table_PM, reaches_T, out_TN, events_TN
    strides = (x.stride(0) * x.itemsize for x in (current_TN, out_TN, events_TN))
    values = table_PM.shape[1]
    # A row of neurons has the same parameters, or as many as there are distinct ones.
    row = repeat if spread else values
    program(*(tensor.data_ptr() for tensor in tensors), steps, *strides, values, row, membrane.numel() // row)


@cache
def _compile(item: int, form: Form, spread: bool, several: bool) -> Callable[..., Any]:
    """The program for numbers of this many bytes, and for parameters that a row shares or lists."""
    import llvmlite.ir as ir

    from rheobase.kernels.llvm import FLOAT, Program, long

    pointers = ("current", "membrane", "sent", "table", "reaches", "out", "events")
    numbers = ("T", "current_step", "out_step", "events_step", "M", "row", "rows")
    program = Program(pointers, numbers)
    b, of, at = program.b, program.given, program.at
    number = FLOAT if item == 4 else ir.DoubleType()

    def parameter(p: ir.Value, n: ir.Value, lanes: int) -> ir.Value:
        """Parameter number p of some neurons, the first of them number n of its row."""
        kind = number if spread else ir.VectorType(number, lanes)
        place = at("table", (b.add(b.mul(p, of["M"]), b.srem(r, of["M"]) if spread else n), item))
        value = program.load(place, kind)
        return program.spread(value, lanes) if spread else value

    def advance(t: ir.Value, n: ir.Value, lanes: int) -> None:
        """Advance some neurons by a step, the first of them number n of its row."""
        kind, where = ir.VectorType(number, lanes), b.add(start, n)
        potentials, nets = at("membrane", (where, item)), at("sent", (where, item))
        step = b.mul(t, of["current_step"])
        current = program.load(at("current", (step, 1), (where, item)), kind)
        u, net = b.fadd(program.load(potentials, kind), current), program.load(nets, kind)
        u, net, value, count = fire(program, form, u, net, lambda p: parameter(p, n, lanes), t)
        b.store(u, potentials, align=1)
        b.store(net, nets, align=1)
        step = b.mul(t, of["out_step"])
        b.store(
            b.fmul(value, parameter(long(form.amplitude), n, lanes)),
            at("out", (step, 1), (where, item)),
            align=1,
        )
        if several:
            step = b.mul(t, of["events_step"])
            b.store(count, at("events", (step, 1), (where, 1)), align=1)

    with program.loop(of["rows"]) as r:
        start = b.mul(r, of["row"])
        program.advance(of["row"], BLOCK, of["T"], advance)
    return program.finish()
