"""The definition of a convolution that drives integrate-and-fire neurons, one step after another."""

import torch
import torch.nn.functional as F

from rheobase.kernels.conv_integrate_fire.problem import Problem


def run(problem: Problem) -> None:
    """Fill `out` step by step, updating `membrane` and `totals` in place."""
    p = problem
    # In float64: it holds integers exactly, and no device silently rounds it to fewer bits.
    weight = p.weight.double()
    threshold = p.threshold.to(p.membrane.dtype)
    potential = p.membrane.clone()
    for t in range(len(p.spikes)):
        current = F.conv2d(p.spikes[t].double(), weight, None, p.stride, p.padding)
        potential = potential + current.to(potential.dtype)
        if p.bias is not None:
            potential = potential + p.bias.to(potential.dtype)[:, None, None]
        if p.residual is not None:
            extra = p.residual if p.residual.dim() == potential.dim() else p.residual[t]
            scale = potential.new_ones(1) if p.residual_scale is None else p.residual_scale
            potential = potential + extra.to(potential.dtype) * scale.to(potential)[:, None, None]
        fired = potential > threshold if p.strict else potential >= threshold
        after = potential - threshold if p.reset == "subtract" else torch.zeros_like(potential)
        potential = torch.where(fired, after, potential)
        p.out[t] = fired
        if p.totals is not None:
            p.totals[t] += fired.flatten(1).sum(1)
    p.membrane.copy_(potential)
