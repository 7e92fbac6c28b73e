"""The definition of a group: one step after another, one member after another."""

from collections.abc import Callable

import torch
from torch import Tensor

from rheobase.kernels.group_fire.rule import GroupRule, Trace


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
    """Fill `out` and `events` step by step, updating `membrane` and `sent` in place."""
    constant = current.dim() == membrane.dim()
    levels = rule.levels
    for t in range(len(out)):
        membrane += current if constant else current[t]
        if trace is not None:
            trace.potential[t], trace.sent[t] = membrane, sent
        value = fire(membrane, sent, rule, levels, before + t, None if events is None else events[t])
        torch.mul(value, rule.amplitude, out=out[t])


def fire(
    membrane: Tensor,
    sent: Tensor,
    rule: GroupRule,
    levels: list[Tensor],
    step: int,
    events: Tensor | None = None,
) -> Tensor:
    """Fire once, given the membrane with this step's current: what is sent in units of the amplitude."""
    if step < len(rule.bias):
        membrane -= rule.bias[step]
    fired, value = torch.empty_like(membrane), torch.zeros_like(membrane)
    if events is not None:
        events.zero_()
    for level, size in zip(levels, rule.sizes, strict=True):
        # Products with 0 or 1 are exact, so these equal selections and are faster.
        (torch.gt if rule.strict else torch.ge)(membrane, level, out=fired)
        membrane.addcmul_(fired, level, value=-1)
        value.addcmul_(fired, size)
        if events is not None:
            events += fired.to(events.dtype)
    level, size = levels[-1], rule.sizes[-1]
    if rule.returns:
        reach = rule.returns[min(step, len(rule.returns) - 1)]
        back = (membrane <= -reach * level) & (sent > size / 2)
        fired.copy_(back)
        membrane.addcmul_(fired, level)
        value.addcmul_(fired, size, value=-1)
        if events is not None:
            events += back
    sent += value
    if rule.forgives:
        membrane.copy_(torch.where(sent < size / 2, membrane.clamp(min=0), membrane))
    return value


def backward(
    from_out: Tensor,
    later: Tensor,
    trace: Trace,
    rule: GroupRule,
    slope: Callable[[Tensor], Tensor],
    before: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `group_backward`."""
    to_current, to_theta = torch.empty_like(from_out), torch.zeros_like(later)
    levels, size = rule.levels, rule.sizes[-1]
    for t in reversed(range(len(from_out))):
        u, net, step = trace.potential[t], trace.sent[t], before + t
        wanted = from_out[t] * rule.amplitude
        u = u - rule.bias[step] if step < len(rule.bias) else u
        stages, value = [], torch.zeros_like(u)
        for level, share in zip(levels, rule.sizes, strict=True):
            fired = (u > level if rule.strict else u >= level).to(u.dtype)
            stages.append((u, fired, level, share))
            u, value = u - fired * level, value + fired * share
        reach = rule.returns[min(step, len(rule.returns) - 1)] if rule.returns else 0.0
        low, may = reach * levels[-1], (net > size / 2).to(u.dtype)
        back = (-u >= low).to(u.dtype) * may if rule.returns else torch.zeros_like(u)
        if rule.forgives:
            gone = (net + value - back * size < size / 2) & (u + back * levels[-1] < 0)
            later = later.masked_fill(gone, 0)
        if rule.returns:
            # As wide as that of firing: a slope in units of a small λ·θ would be rare and huge.
            height = -u / levels[-1]
            gain = wanted * size * may * slope(height - reach) / levels[-1]
            to_theta = to_theta + later * back * size + gain * height * size
            later = later + gain
        for u, fired, level, share in reversed(stages):
            height = u / level
            gain = wanted * share * slope(height - 1) / level
            to_theta = to_theta - later * fired * share - gain * height * share
            later = later + gain
        to_current[t] = later
    return to_current, later, to_theta
