"""The definitions of a convolution that drives integrate-and-fire neurons, and of one rounded to counts."""

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.backends import widen
from rheobase.kernels.conv_integrate_fire.problem import Convolution, Problem, Quantisation


def run(problem: Problem) -> None:
    """Fill `out` step by step, updating `membrane` and `totals` in place."""
    p = problem
    threshold = p.threshold.to(p.membrane.dtype)
    potential = p.membrane.clone()
    for t in range(len(p.spikes)):
        potential = _add_current(potential, p, t)
        fired = potential > threshold if p.strict else potential >= threshold
        after = potential - threshold if p.reset == "subtract" else torch.zeros_like(potential)
        potential = torch.where(fired, after, potential)
        p.out[t] = fired
        if p.totals is not None:
            p.totals[t] += fired.flatten(1).sum(1)
    p.membrane.copy_(potential)


def quantise(problem: Quantisation) -> None:
    """Fill `out` step by step."""
    p = problem
    high = widen(p.high[:, None, None])
    for t in range(len(p.spikes)):
        z = _add_current(torch.zeros(p.out.shape[1:], dtype=p.number, device=p.out.device), p, t)
        # In float64 no quotient is rounded up to an integer.
        count = (widen(z) / widen(p.threshold.to(z.dtype))).floor()
        p.out[t] = torch.minimum(count.clamp(min=0), high)


def _add_current(potential: Tensor, p: Convolution, t: int) -> Tensor:
    """Potentials plus the current of a step."""
    # In float64: it holds integers exactly, and no device silently rounds it to fewer bits.
    current = F.conv2d(widen(p.spikes[t]), widen(p.weight), None, p.stride, p.padding)
    potential = potential + current.to(potential)
    if p.bias is not None:
        potential = potential + p.bias.to(potential.dtype)[:, None, None]
    if p.residual is not None:
        extra = p.residual if p.residual.dim() == potential.dim() else p.residual[t]
        scale = potential.new_ones(1) if p.residual_scale is None else p.residual_scale
        potential = potential + extra.to(potential.dtype) * scale.to(potential)[:, None, None]
    return potential
