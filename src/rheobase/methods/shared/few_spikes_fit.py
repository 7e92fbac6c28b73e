"""Coefficients of few-spikes neurons for functions other than ReLU.

Shape letters: R candidates, N points, K steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.network import FUNCTIONS, Coefficients

_POINTS = 512
_STARTS = 512
_CHILDREN = 8


@dataclass(frozen=True)
class Fit:
    """The result of a fit.

    Attributes:
        coefficients: T_t, h_t and d_t.
        error: The root mean squared error at the points of the fit.
    """

    coefficients: Coefficients
    error: float


def fit(
    function: str | Callable[[Tensor], Tensor],
    steps: int,
    bounds: tuple[float, float],
    seed: int = 0,
    *,
    climbers: int = 8,
    iterations: int = 1000,
) -> Fit:
    """Fit a few-spikes neuron to a function.

    T_t and h_t decide which inputs fire when; the best d_t for them is a least-squares solution. So only T_t
    and h_t are searched: hill climbers try random changes of a few of them at a time and keep those that
    lower the squared error. They begin at the best of many random candidates, whose first steps are free and
    whose last steps are the binary digits of a ReLU. (The paper minimises over all three by Adam with a
    pseudo-derivative; here that gave about twice the error at ten times the cost.)

    Half of the points are spaced evenly between the bounds, half follow a normal distribution within them.

    Args:
        function: The function, or its name in `activations.FUNCTIONS`.
        steps: K.
        bounds: The range of inputs, with an upper bound above zero. Inputs outside are clipped.
        seed: Seed of all random numbers. On a CPU the same arguments give the same fit.
        climbers: Number of parallel searches; the best one is returned.
        iterations: Number of rounds, in each of which a climber tries eight changes.
    """
    low, high = bounds
    if steps < 1 or climbers < 1 or iterations < 0 or not low < high or not high > 0:
        raise ValueError(
            "a fit needs steps ≥ 1, climbers ≥ 1, iterations ≥ 0 and bounds low < high above zero, got "
            f"steps={steps}, climbers={climbers}, iterations={iterations}, bounds={bounds}"
        )
    draws = torch.Generator().manual_seed(seed)
    x_N = place_points(low, high)
    y_N = (FUNCTIONS[function] if isinstance(function, str) else function)(x_N)
    pairs = _draw_starts(steps, high, max(_STARTS, climbers), draws)
    error = _solve(pairs, x_N, y_N)[0]
    chosen = error.argsort(stable=True)[:climbers]
    pairs, error = pairs[chosen], error[chosen]
    rows = torch.arange(climbers)
    for _ in range(iterations):
        changed = _change(pairs, draws)
        errors = _solve(changed.flatten(0, 1), x_N, y_N)[0].view(climbers, _CHILDREN)
        least, which = errors.min(1)
        better = least < error
        error = torch.where(better, least, error)
        pairs = torch.where(better[:, None, None], changed[rows, which], pairs)
    best = int(error.argmin())
    _, d_RK = _solve(pairs[best : best + 1], x_N, y_N)
    (thresholds, resets), values = pairs[best].tolist(), d_RK[0].tolist()
    return Fit(Coefficients(tuple(thresholds), tuple(resets), tuple(values)), math.sqrt(error[best].item()))


def place_points(low: float, high: float) -> Tensor:
    """The inputs at which the error is measured, (N,) in double."""
    ends = torch.special.ndtr(torch.tensor([low, high], dtype=torch.float64))
    shares = torch.linspace(0, 1, _POINTS // 2 + 2, dtype=torch.float64)[1:-1]
    dense = torch.special.ndtri(ends[0] + shares * (ends[1] - ends[0])).clamp(low, high)
    return torch.cat([torch.linspace(low, high, _POINTS // 2, dtype=torch.float64), dense]).sort().values


def _draw_starts(steps: int, high: float, count: int, draws: torch.Generator) -> Tensor:
    """T_t and h_t of random candidates, (R, 2, K)."""
    noise = torch.rand(count, 2, steps, generator=draws, dtype=torch.float64)
    free = torch.randint(0, 2 * steps // 3 + 1, (count, 1), generator=draws)
    place = (torch.arange(1, steps + 1) - free)[:, None]
    digits = high * 2.0 ** -place.clamp(min=1).double() * (0.9 + 0.2 * noise)
    steps_without_reset = torch.stack([3 * torch.erfinv(1.998 * noise[:, 0] - 0.999), 0 * noise[:, 1]], 1)
    return torch.where(place > 0, digits, steps_without_reset)


def _change(pairs_R2K: Tensor, draws: torch.Generator) -> Tensor:
    """Children of each candidate, (R, children, 2, K): about four numbers change, by random amounts."""
    shape = (len(pairs_R2K), _CHILDREN, *pairs_R2K.shape[1:])
    which = torch.rand(shape, generator=draws, dtype=torch.float32) < 2 / pairs_R2K.shape[2]
    size = 0.3 * 10 ** (-2 * torch.rand(*shape[:2], 1, 1, generator=draws, dtype=torch.float64))
    noise = torch.randn(shape, generator=draws, dtype=torch.float64)
    return pairs_R2K[:, None] + which * size * noise * (pairs_R2K[:, None].abs() + 0.1)


def _solve(pairs_R2K: Tensor, x_N: Tensor, y_N: Tensor) -> tuple[Tensor, Tensor]:
    """The mean squared error of each candidate (R,), and the d_t that give it, (R, K)."""
    v_RN = x_N.expand(len(pairs_R2K), -1)
    spikes = []
    for pair_R2 in pairs_R2K.unbind(2):
        spikes.append((v_RN >= pair_R2[:, :1]).double())
        v_RN = v_RN - pair_R2[:, 1:] * spikes[-1]
    z_RNK = torch.stack(spikes, 2)
    # A small ridge, as the d_t of a step that never fires, or always fires with another, is not determined.
    ridge = 1e-6 * torch.eye(z_RNK.shape[2], dtype=torch.float64)
    d_RK = torch.linalg.solve(z_RNK.mT @ z_RNK + ridge, z_RNK.mT @ y_N)
    return ((z_RNK @ d_RK[:, :, None])[:, :, 0] - y_N).square().mean(1), d_RK
