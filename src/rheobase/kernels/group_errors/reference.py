"""The definition of the errors of groups: one step after another, each of them twice."""

import torch
from torch import Tensor

from rheobase.kernels.group_fire import GroupRule, group_fire
from rheobase.kernels.rows import empty_steps


def run(
    current: Tensor, membrane: Tensor, activation: Tensor, rule: GroupRule, unit: float, out: Tensor
) -> None:
    """Increase `out`, updating `membrane` in place."""
    sent, room = torch.zeros_like(membrane), empty_steps(membrane, 1, membrane.dtype)
    others = [dim for dim in range(membrane.dim()) if dim != 1]
    for t, arriving in enumerate(current):
        membrane += arriving
        none, trial = torch.zeros_like(membrane), membrane.clone()
        value = group_fire(none, trial, sent.clone(), rule, out=room, before=t, backend="reference")[0]
        error = value - activation
        out[t] += (error.double() * (1 / unit)).sum(others, dtype=torch.int64)
        group_fire(-error, membrane, sent, rule, out=room, before=t, backend="reference")
