"""Theorem 1 of the paper, numerically."""

import pytest
import torch

from rheobase.kernels import integrate_fire


def error(theta: float, v0: float, T: int) -> torch.Tensor:
    """ANN output minus SNN output for z uniform in [0, θ], on a fine grid of midpoints."""
    z = (torch.arange(60_000, dtype=torch.float64) + 0.5) / 60_000 * theta
    membrane = torch.full((1, len(z)), v0, dtype=torch.float64)
    spikes = integrate_fire(z[None], membrane, torch.tensor(theta, dtype=torch.float64), steps=T)
    return z - spikes.sum(0)[0] * theta / T


@pytest.mark.parametrize("T", [1, 4, 9, 32])
@pytest.mark.parametrize("theta", [0.7, 3.0])
def test_expected_errors_are_the_appendix_expressions(theta: float, T: int) -> None:
    """E e² = (Σp)·((θ−v)³ + v³)/(3T³) and E e = (Σp)·((θ−v)² − v²)/(2T²), where Σp = T/θ."""
    for fraction in (0.0, 0.2, 0.5, 0.8):
        v0 = fraction * theta
        e = error(theta, v0, T)
        square = (T / theta) * ((theta - v0) ** 3 + v0**3) / (3 * T**3)
        mean = (T / theta) * ((theta - v0) ** 2 - v0**2) / (2 * T**2)
        assert e.square().mean().item() == pytest.approx(square, rel=2e-3)
        assert e.mean().item() == pytest.approx(mean, abs=2e-3 * theta / T)


def test_half_is_the_best_start() -> None:
    starts = [i / 20 for i in range(20)]
    errors = [error(1.0, v, 8) for v in starts]
    squares = [e.square().mean().item() for e in errors]
    assert starts[squares.index(min(squares))] == 0.5
    assert abs(errors[10].mean().item()) < 1e-4
    assert errors[0].mean().item() > 0.05
