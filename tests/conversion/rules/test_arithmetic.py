"""Rules for sums and products: factors and signs."""

import pytest
import torch
from torch import Tensor

from families import Applied
from rheobase.conversion import capture


@pytest.mark.parametrize(
    "function",
    [
        lambda r: torch.rsub(r, 3),
        lambda r: torch.rsub(r, 3, alpha=2),
        lambda r: 3 - r,
        lambda r: torch.sub(torch.tensor(3.0), r, alpha=2),
        lambda r: torch.add(torch.tensor(3.0), r, alpha=2),
        lambda r: torch.add(r, 3, alpha=2),
        lambda r: torch.sub(r, r.mean(1, keepdim=True), alpha=2),
        lambda r: torch.rsub(r, r, alpha=3),
    ],
)
@pytest.mark.parametrize("shown", [True, False])
def test_sums_with_a_factor_have_the_right_sign(function, shown: bool) -> None:
    """Also where no example is given, with which a wrong sign would be noticed."""
    torch.manual_seed(0)
    model, x = Applied(function).eval(), torch.randn(6, 12)
    assert torch.allclose(capture(model, x if shown else None).module(x), model(x), atol=1e-5)


MASK = torch.arange(8) % 3 == 0


def into_zeros(r: Tensor) -> Tensor:
    """A sum that is written over a constant, and read by the constant's name."""
    total = torch.zeros_like(r)
    total.add_(r, alpha=2)
    total.sub_(r.mean(1, keepdim=True))
    return total


@pytest.mark.parametrize(
    "function",
    [
        into_zeros,
        lambda r: torch.where(MASK, r, torch.arange(8.0)),
        lambda r: torch.where(MASK, torch.arange(8.0), r),
        lambda r: r.masked_fill(MASK, torch.tensor(0.3)),
        lambda r: torch.where(torch.isnan(r) | ~r.isfinite(), torch.zeros(()), r),
        lambda r: r.mean(1, keepdim=True) * torch.arange(8.0),
        lambda r: torch.arange(8.0) - r.mean(1, keepdim=True),
        lambda r: r[:, None] * torch.arange(24.0).view(3, 8) + torch.arange(6.0).view(2, 1, 3, 1)[1],
    ],
)
def test_constants_among_signals(function) -> None:
    torch.manual_seed(0)
    model, x = Applied(function).eval(), torch.randn(6, 12)
    assert torch.allclose(capture(model, x).module(x), model(x), atol=1e-5)
