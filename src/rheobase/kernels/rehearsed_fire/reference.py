"""The definition of a rehearsal: one step after another."""

import torch
from torch import Tensor

from rheobase.kernels.rehearsed_fire.rule import RehearsedRule


def run(
    current: Tensor,
    membrane: Tensor,
    memory: dict[str, Tensor],
    rule: RehearsedRule,
    out: Tensor,
    before: int,
) -> None:
    """Fill `out` step by step, updating `membrane` and `memory` in place."""
    constant, theta = current.dim() == membrane.dim(), rule.threshold
    for t in range(before, before + len(out)):
        membrane += current if constant else current[t - before]
        fired = membrane > theta if rule.strict else membrane >= theta
        if rule.shifts and (rule.turn - 1) * rule.length <= t < rule.turn * rule.length:
            silent, firing = memory["silent"], memory["firing"]
            torch.maximum(silent, torch.where(fired, -torch.inf, membrane), out=silent)
            torch.minimum(firing, torch.where(fired, membrane, torch.inf), out=firing)
        membrane -= torch.where(fired, theta, 0)
        sent = fired * rule.amplitude
        torch.mul(sent, 1 if rule.shifts else memory["factor"], out=out[t - before])
        if (t + 1) % rule.length == 0 and t < rule.turns * rule.length:
            if t + 1 == rule.turn * rule.length:
                _learn(memory, membrane, rule)
            membrane.copy_(memory["start"])


def _learn(memory: dict[str, Tensor], membrane: Tensor, rule: RehearsedRule) -> None:
    """Correct neurons at the end of their turn."""
    theta = rule.threshold
    if not rule.shifts:
        memory["factor"].copy_(membrane > rule.clear * theta)
        return
    silent, firing = memory["silent"], memory["firing"]
    less = (membrane < 0) & firing.isfinite()
    lower = torch.maximum(theta.expand_as(firing), firing - (1 - rule.clear) * theta)
    # One that fired at every step of its turn can fire no more often, wherever it starts.
    more = (membrane >= theta) & silent.isfinite()
    higher = torch.maximum(theta.expand_as(silent), (1 + rule.clear) * theta - silent)
    memory["start"] += torch.where(more, higher, 0) - torch.where(less, lower, 0)
