"""Operations on spikes over time, and what they cost."""

import pytest
import torch
from torch import Tensor, nn

from rheobase.network.operations import (
    GatedMaxPool,
    MaxPool,
    Product,
    count_multiplications,
    spread,
    sum_windows,
)


def test_adaptive_windows_are_summed() -> None:
    x = torch.ones(1, 2, 7)
    assert sum_windows(nn.AdaptiveAvgPool1d(3), x)[0, 0].tolist() == [3, 3, 3]
    assert sum_windows(nn.AvgPool1d(3, 2, 1), x)[0, 0].tolist() == [2, 3, 3, 2]


def test_multiplications_of_a_layer() -> None:
    assert count_multiplications(nn.Linear(5, 3), 5, 3) == 15
    assert count_multiplications(nn.Conv2d(2, 4, 3, padding=1), 2 * 16, 4 * 16) == 64 * 18
    assert count_multiplications(nn.ConvTranspose2d(2, 4, 3), 2 * 16, 4 * 36) == 32 * 36


@pytest.mark.parametrize("kind", [MaxPool, GatedMaxPool])
def test_a_maximum_over_time_of_spikes_is_spikes(kind: type[MaxPool]) -> None:
    spikes = (torch.rand(9, 2, 3, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    pool = kind(nn.MaxPool2d(2))
    whole = pool.advance((spikes,), {}, 0)
    state: dict[str, Tensor] = {}
    parts = [pool.advance((spikes[a : a + 4],), state, a) for a in (0, 4, 8)]
    assert torch.equal(torch.cat(parts), whole)
    assert set(whole.unique().tolist()) == {0.0, 1.0}
    if kind is MaxPool:
        assert torch.equal(whole.sum(0), nn.functional.max_pool2d(spikes.sum(0), 2))


def test_a_product_of_signals_tends_to_the_product_of_their_means() -> None:
    a, b = torch.rand(2, 50, 1, 3)
    total = Product().advance((a, b), {}, 0).sum(0)
    torch.testing.assert_close(total / 50, a.mean(0) * b.mean(0))


@pytest.mark.parametrize(
    ("mode", "factor"), [("nearest", 2), ("bilinear", 0.5), ("bilinear", 1.5), ("bicubic", 2)]
)
def test_every_value_counts_once_in_what_it_has_a_part_in(mode: str, factor: float) -> None:
    resize, x = nn.Upsample(scale_factor=factor, mode=mode), torch.rand(1, 1, 5, 6, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(resize, x).view(-1, x.numel())
    expected = (jacobian.abs() > 1e-9).double() @ x.flatten()
    torch.testing.assert_close(spread(resize, x).flatten(), expected)
