"""Groups in Triton: a program owns a block of neurons and keeps their state in registers.

Letters: T steps, N all neurons of the batch, M distinct values of a parameter.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

import torch
import triton
import triton.language as tl
from torch import Tensor

from rheobase.kernels.group_fire.rule import GroupRule, Trace
from rheobase.kernels.launching import launch
from rheobase.kernels.rows import empty_steps, flat_out, flat_states, flat_steps, flat_table

_BLOCK = 512


@triton.jit
def fire(
    potential,
    net,
    row,
    M,
    t,
    returns,
    reaches,
    biases,
    inside,
    MEMBERS: tl.constexpr,
    RETURNS: tl.constexpr,
    FORGIVES: tl.constexpr,
    STRICT: tl.constexpr,
):
    """Fire once: the potentials, what was sent before and now in units of the amplitude, and the events.

    The rows of the table, M apart: levels, sizes, amplitude, biases.
    """
    potential -= tl.load(row + (2 * MEMBERS + 1 + t) * M, mask=inside & (t < biases), other=0.0)
    value = tl.zeros_like(potential)
    count = tl.zeros_like(potential).to(tl.int32)
    for i in tl.static_range(MEMBERS):
        level = tl.load(row + i * M, mask=inside, other=1.0)
        size = tl.load(row + (MEMBERS + i) * M, mask=inside, other=1.0)
        fired = potential > level if STRICT else potential >= level
        potential = tl.where(fired, potential - level, potential)
        value = tl.where(fired, value + size, value)
        count += fired.to(tl.int32)
    if RETURNS:
        reach = tl.load(returns + tl.minimum(t, reaches - 1))
        back = (potential <= -reach * level) & (net > size * 0.5)
        potential = tl.where(back, potential + level, potential)
        value = tl.where(back, value - size, value)
        count += back.to(tl.int32)
    net += value
    if FORGIVES:
        potential = tl.where(net < size * 0.5, tl.maximum(potential, 0.0), potential)
    return potential, net, value, count


@triton.jit(do_not_specialize=["before", "steps", "biases", "reaches"])
def _group_fire(
    current,
    membrane,
    sent,
    table,
    returns,
    out,
    events,
    potentials,
    nets,
    neurons,
    before,
    steps,
    biases,
    reaches,
    current_step,
    out_step,
    events_step,
    M,
    repeat,
    MEMBERS: tl.constexpr,
    RETURNS: tl.constexpr,
    FORGIVES: tl.constexpr,
    STRICT: tl.constexpr,
    EVENTS: tl.constexpr,
    TRACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < neurons
    row = table + (n // repeat) % M
    potential = tl.load(membrane + n, mask=inside, other=0.0)
    net = tl.load(sent + n, mask=inside, other=0.0)
    amplitude = tl.load(row + 2 * MEMBERS * M, mask=inside, other=0.0)
    current += n
    out += n
    events += n
    potentials += n
    nets += n
    for t in range(before, before + steps):
        potential += tl.load(current, mask=inside, other=0.0).to(potential.dtype)
        if TRACES:
            tl.store(potentials, potential, mask=inside)
            tl.store(nets, net, mask=inside)
            potentials += neurons
            nets += neurons
        potential, net, value, count = fire(
            potential, net, row, M, t, returns, reaches, biases, inside, MEMBERS, RETURNS, FORGIVES, STRICT
        )
        tl.store(out, (value * amplitude).to(out.dtype.element_ty), mask=inside)
        if EVENTS:
            tl.store(events, count.to(events.dtype.element_ty), mask=inside)
        current += current_step
        out += out_step
        events += events_step
    tl.store(membrane + n, potential, mask=inside)
    tl.store(sent + n, net, mask=inside)


def run(
    current: Tensor,
    membrane: Tensor,
    sent: Tensor,
    rule: GroupRule,
    out: Tensor,
    events: Tensor | None,
    before: int,
    trace: Trace | None,
) -> None:
    """Fill `out` and `events` in one launch, updating `membrane` and `sent` in place."""
    table, repeat, returns, form = describe(rule, membrane)
    membrane_N, sent_N = flat_states(membrane, sent)
    steps = len(out)
    current_TN, out_TN = flat_steps(current, membrane, steps), flat_out(out, membrane)
    events_TN = out_TN if events is None else flat_out(events, membrane)
    traces = [membrane_N, sent_N]
    if trace is not None:
        traces = [flat_out(trace.potential, membrane), flat_out(trace.sent, membrane)]
    with torch.cuda.device_of(membrane):
        launch(
            _group_fire,
            (triton.cdiv(membrane.numel(), _BLOCK),),
            current_TN,
            membrane_N,
            sent_N,
            table,
            returns,
            out_TN,
            events_TN,
            *traces,
            membrane.numel(),
            before,
            steps,
            len(rule.bias),
            len(rule.returns),
            current_TN.stride(0),
            out_TN.stride(0),
            events_TN.stride(0),
            table.shape[1],
            repeat,
            **form,
            EVENTS=events is not None,
            TRACES=trace is not None,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,  # as products are rounded in the reference
        )


@triton.jit(do_not_specialize=["before", "steps", "biases", "reaches"])
def _group_backward(
    from_out,
    later,
    potentials,
    nets,
    table,
    returns,
    to_current,
    to_theta,
    neurons,
    before,
    steps,
    biases,
    reaches,
    M,
    repeat,
    HEIGHT: tl.constexpr,
    MEMBERS: tl.constexpr,
    RETURNS: tl.constexpr,
    FORGIVES: tl.constexpr,
    STRICT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = n < neurons
    row = table + (n // repeat) % M
    gradient = tl.load(later + n, mask=inside, other=0.0)
    theta = tl.zeros_like(gradient)
    amplitude = tl.load(row + 2 * MEMBERS * M, mask=inside, other=0.0)
    for i in range(steps):
        t = before + steps - 1 - i
        place = (steps - 1 - i) * neurons + n
        wanted = tl.load(from_out + place, mask=inside, other=0.0).to(gradient.dtype) * amplitude
        first = tl.load(potentials + place, mask=inside, other=0.0)
        net = tl.load(nets + place, mask=inside, other=0.0)
        first -= tl.load(row + (2 * MEMBERS + 1 + t) * M, mask=inside & (t < biases), other=0.0)
        u = first
        value = tl.zeros_like(u)
        for j in tl.static_range(MEMBERS):
            level = tl.load(row + j * M, mask=inside, other=1.0)
            size = tl.load(row + (MEMBERS + j) * M, mask=inside, other=1.0)
            fired = u > level if STRICT else u >= level
            u = tl.where(fired, u - level, u)
            value = tl.where(fired, value + size, value)
        back = u > float("inf")
        reach = tl.load(returns + tl.minimum(t, tl.maximum(reaches - 1, 0)))
        low = reach * level
        if RETURNS:
            back = (-u >= low) & (net > size * 0.5)
        if FORGIVES:
            net_after = net + value - tl.where(back, size, 0.0)
            gone = (net_after < size * 0.5) & (u + tl.where(back, level, 0.0) < 0)
            gradient = tl.where(gone, 0.0, gradient)
        if RETURNS:
            height = -u / level
            slope = HEIGHT * tl.maximum(1 - tl.abs(height - reach), 0.0)
            gain = tl.where(net > size * 0.5, wanted * size * slope / level, 0.0)
            theta += tl.where(back, gradient * size, 0.0) + gain * height * size
            gradient += gain
        for k in tl.static_range(MEMBERS):
            # The members before member MEMBERS − 1 − k fire again, to know what it saw.
            u = first
            for j in tl.static_range(MEMBERS - 1 - k):
                level = tl.load(row + j * M, mask=inside, other=1.0)
                u = tl.where(u > level if STRICT else u >= level, u - level, u)
            level = tl.load(row + (MEMBERS - 1 - k) * M, mask=inside, other=1.0)
            size = tl.load(row + (2 * MEMBERS - 1 - k) * M, mask=inside, other=1.0)
            fired = u > level if STRICT else u >= level
            height = u / level
            gain = wanted * size * (HEIGHT * tl.maximum(1 - tl.abs(height - 1), 0.0)) / level
            theta -= tl.where(fired, gradient * size, 0.0) + gain * height * size
            gradient += gain
        tl.store(to_current + place, gradient.to(to_current.dtype.element_ty), mask=inside)
    tl.store(later + n, gradient, mask=inside)
    tl.store(to_theta + n, theta, mask=inside)


def backward(
    from_out: Tensor, later: Tensor, trace: Trace, rule: GroupRule, height: float, before: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `group_backward`."""
    like = trace.potential[0]
    table, repeat, returns, form = describe(rule, like)
    steps = len(from_out)
    to_current = empty_steps(like, steps, from_out.dtype)
    to_membrane, to_theta = torch.empty_like(like).copy_(later), torch.empty_like(like)
    later_N, theta_N = flat_states(like, to_membrane, to_theta)[1:]
    with torch.cuda.device_of(like):
        launch(
            _group_backward,
            (triton.cdiv(like.numel(), _BLOCK),),
            flat_steps(from_out, like, steps).contiguous(),
            later_N,
            flat_out(trace.potential, like),
            flat_out(trace.sent, like),
            table,
            returns,
            flat_out(to_current, like),
            theta_N,
            like.numel(),
            before,
            steps,
            len(rule.bias),
            len(rule.returns),
            table.shape[1],
            repeat,
            HEIGHT=height,
            **form,
            BLOCK=_BLOCK,
        )
    return to_current, to_membrane, to_theta


def describe(rule: GroupRule, like: Tensor) -> tuple[Tensor, int, Tensor, dict[str, int]]:
    """The table of a rule and the repeats of its numbers, λ of each step, and what its programs depend on."""
    table, repeat = flat_table([*rule.levels, *rule.sizes, rule.amplitude, *rule.bias], like)
    returns = torch.tensor(rule.returns or (0.0,), dtype=like.dtype, device=like.device)
    form = {"MEMBERS": len(rule.sizes), "RETURNS": bool(rule.returns)}
    return table, repeat, returns, form | {"FORGIVES": rule.forgives, "STRICT": rule.strict}
