"""Coefficients of few-spikes neurons for functions other than ReLU, found by gradient descent.

Shape letters: R restarts, N points, K steps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rheobase.activations import FUNCTIONS
from rheobase.neurons import Coefficients

_POINTS = 1024
_VOLTAGE = 0.1
_CHECK_EVERY = 25


@dataclass(frozen=True)
class Fit:
    """What a fit has found.

    Attributes:
        coefficients: T_t, h_t and d_t.
        error: The root of the mean squared error on the points of the fit.
    """

    coefficients: Coefficients
    error: float


def fit(
    function: str | Callable[[Tensor], Tensor],
    steps: int,
    bounds: tuple[float, float],
    seed: int = 0,
    *,
    restarts: int = 64,
    iterations: int = 2000,
    device: torch.device | str = "cpu",
) -> Fit:
    """Fit a few-spikes neuron to a function.

    Adam descends the mean squared error and a tenth of the squared mean excess of |v − T_t| over |v| + 1, which
    keeps membranes where they learn. The slope of firing is taken as max(0, 1 − |v − T_t|/(|v| + 1)). One half
    of the points lies evenly between the bounds, the other as a normal distribution of mean 0 and variance 1
    lies within them. Half of the restarts begin near the binary digits of a ReLU, half at random. Each ends at
    the best it came by, and with the d_t of least squared error for its T_t and h_t; the best is given.

    Args:
        function: The function, or its name in `activations.FUNCTIONS`.
        steps: K.
        bounds: Between which inputs it shall hold. What lies beyond is cut or strays.
        seed: Of the starting points.
        restarts: From how many points to descend, all at once.
        iterations: Of Adam.
        device: Where to compute; another device rounds otherwise and may find another fit.
    """
    low, high = bounds
    if steps < 1 or restarts < 1 or iterations < 1 or not low < high:
        raise ValueError(
            f"a fit needs steps, restarts and iterations ≥ 1 and bounds (low, high), got {steps}, {restarts}, "
            f"{iterations} and {bounds}"
        )
    x_N = place_points(low, high).to(device)
    y_N = (FUNCTIONS[function] if isinstance(function, str) else function)(x_N)
    descent = _Descent(_draw_starts(steps, high, restarts, seed).to(device))
    best_R = torch.full((restarts,), math.inf, device=device)
    best_3RK = descent.table.clone()
    for i in range(iterations):
        if i % _CHECK_EVERY == 0 or i == iterations - 1:
            with torch.no_grad():
                error_R = (_respond(descent.table, x_N)[0] - y_N).square().mean(1)
            better = error_R < best_R
            best_R = torch.where(better, error_R, best_R)
            best_3RK = torch.where(better[:, None], descent.table, best_3RK)
        descent.step(x_N, y_N, 0.5 * (1 + math.cos(math.pi * i / iterations)))
    return _finish(best_3RK.double(), x_N.double(), y_N.double())


def place_points(low: float, high: float) -> Tensor:
    """The inputs at which the error is measured."""
    even = torch.linspace(low, high, _POINTS // 2)
    normal = torch.distributions.Normal(0.0, 1.0)
    ends = normal.cdf(torch.tensor([low, high]))
    shares = torch.linspace(0, 1, _POINTS // 2 + 2)[1:-1]
    dense = normal.icdf((ends[0] + shares * (ends[1] - ends[0])).clamp(1e-6, 1 - 1e-6))
    return torch.cat([even, dense.clamp(low, high)]).sort().values


def _draw_starts(steps: int, high: float, restarts: int, seed: int) -> Tensor:
    """T, h and d of each restart, (3, R, K)."""
    draws = torch.Generator().manual_seed(seed)
    noise = torch.rand(3, restarts, steps, generator=draws)
    ahead = torch.randint(0, steps // 2 + 1, (restarts, 1), generator=draws)
    place = torch.arange(1, steps + 1) - ahead  # some steps are left free before the digits
    digits = torch.where(place > 0, high * 2.0 ** -place.clamp(min=1), 0).expand(3, -1, -1)
    free = (place <= 0) * (2 * noise - 1)
    near = digits * (0.9 + 0.2 * noise) + free
    spread = torch.tensor([[-1.0, 1.0], [0.0, 1.0], [-0.5, 1.0]]).view(3, 2, 1, 1)
    anywhere = spread[:, 0] + (spread[:, 1] - spread[:, 0]) * noise
    return torch.where((torch.arange(restarts) % 2 == 0)[:, None], near, anywhere * max(1.0, high / 4))


class _Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, distance: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(distance / scale, scale)
        return (distance >= 0).to(distance.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        relative, scale = ctx.saved_tensors
        return gradients[0] * (1 - relative.abs()).clamp(min=0) / scale, None


def _respond(table_3RK: Tensor, x_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (R, N), the excess of the voltages (R,), and spikes (R, N, K)."""
    T_RK, h_RK, d_RK = table_3RK
    v_RN = x_N.expand(len(T_RK), -1)
    output_RN, excess_R, spikes = torch.zeros_like(v_RN), torch.zeros_like(v_RN[:, 0]), []
    for T_R, h_R, d_R in zip(T_RK.unbind(1), h_RK.unbind(1), d_RK.unbind(1), strict=True):
        distance_RN, scale_RN = v_RN - T_R[:, None], v_RN.abs() + 1
        z_RN = _Spike.apply(distance_RN, scale_RN.detach())  # type: ignore[no-untyped-call]
        excess_R = excess_R + (distance_RN.abs() / scale_RN - 1).clamp(min=0).mean(1).square()
        output_RN = output_RN + d_R[:, None] * z_RN
        v_RN = v_RN - h_R[:, None] * z_RN
        spikes.append(z_RN)
    return output_RN, excess_R, torch.stack(spikes, -1)


class _Descent:
    """Adam on all restarts at once, each with a rate of its own."""

    def __init__(self, table_3RK: Tensor) -> None:
        self.table = table_3RK.clone().requires_grad_()
        restarts = table_3RK.shape[1]
        self.rate_R1 = (0.003 * 30 ** torch.linspace(0, 1, restarts))[:, None].to(table_3RK)
        self.mean, self.square, self.count = torch.zeros_like(table_3RK), torch.zeros_like(table_3RK), 0

    def step(self, x_N: Tensor, y_N: Tensor, factor: float) -> None:
        output_RN, excess_R, _ = _respond(self.table, x_N)
        loss = ((output_RN - y_N).square().mean(1) + _VOLTAGE * excess_R).sum()
        (gradient,) = torch.autograd.grad(loss, [self.table])
        gradient = gradient.nan_to_num(0, 0, 0)
        self.count += 1
        self.mean.lerp_(gradient, 0.1)
        self.square.lerp_(gradient.square(), 0.001)
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
        with torch.no_grad():
            self.table -= factor * self.rate_R1 * mean / (square.sqrt() + 1e-8)


def _finish(table_3RK: Tensor, x_N: Tensor, y_N: Tensor) -> Fit:
    """The best restart, its d_t solved for."""
    _, _, z_RNK = _respond(table_3RK, x_N)
    steps = z_RNK.shape[2]
    # A trace of ridge, as a step that never fires, or always with another, leaves its d_t open.
    gram_RKK = z_RNK.mT @ z_RNK + 1e-6 * torch.eye(steps).to(z_RNK)
    d_RK = torch.linalg.solve(gram_RKK, z_RNK.mT @ y_N)
    error_R = ((z_RNK @ d_RK[:, :, None])[:, :, 0] - y_N).square().mean(1)
    best = int(error_R.argmin())
    thresholds, resets = table_3RK[:2, best].tolist()
    coefficients = Coefficients(tuple(thresholds), tuple(resets), tuple(d_RK[best].tolist()))
    return Fit(coefficients, math.sqrt(error_R[best].item()))
