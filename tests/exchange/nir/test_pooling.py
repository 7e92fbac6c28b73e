"""Pools as convolutions compute the same, and are folded where a layer can absorb them."""

import pytest
import torch
from torch import nn

from rheobase import HALF, convert
from rheobase.exchange.nir.canonical import canonicalise, unit_thresholds
from rheobase.exchange.nir.draft import Draft, NirError
from rheobase.exchange.nir.pooling import area, fold_pools, is_power_of_two
from rheobase.network import SNN


def converted(pool: nn.Module, *behind: nn.Module) -> SNN:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), pool, *behind, nn.Flatten()).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0.1, 0.3)
    return convert(model, "max-norm", torch.rand(8, 2, 8, 8), initial=HALF)


def folded(snn: SNN) -> SNN:
    draft = Draft(snn)
    with torch.no_grad():
        canonicalise(draft)
        unit_thresholds(draft)
        fold_pools(draft, lambda pool: True)
    return draft.finish()


@pytest.mark.parametrize(
    ("pool", "behind", "layers"),
    [
        (nn.AvgPool2d(2), [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()], 3),  # one convolution with the next
        (nn.AvgPool2d(3), [nn.Conv2d(3, 4, 2), nn.ReLU()], 3),
        (nn.AvgPool2d(3), [nn.Conv2d(3, 4, 2, padding=1), nn.ReLU()], 4),  # not at the edges
        (nn.AvgPool2d(2, 1), [nn.Conv2d(3, 4, 2), nn.ReLU()], 4),  # windows overlap
        (nn.AvgPool2d((4, 2)), [nn.Flatten(), nn.Linear(24, 5)], 2),  # spread over the linear layer
        (nn.AvgPool2d(2), [nn.ReLU()], 3),
    ],
    ids=str,
)
def test_pools_become_weights(pool: nn.Module, behind: list[nn.Module], layers: int) -> None:
    snn = converted(pool, *behind)
    result = folded(snn)
    # The amplitude of the last site is a layer, too.
    found = [m for m in result.module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    assert len(found) == layers
    assert not any(isinstance(m, nn.AvgPool2d) for m in result.module.modules())
    x = torch.rand(4, 2, 8, 8)
    torch.testing.assert_close(result.limit(x), snn.limit(x))


def test_a_pool_that_is_no_square_convolution() -> None:
    with pytest.raises(NirError, match=r"2.*\(2, 1\)"):
        folded(converted(nn.AvgPool2d((2, 1)), nn.ReLU()))


@pytest.mark.parametrize(
    ("size", "power"), [(1, True), (2, True), ((2, 4), True), (3, False), ((1, 6), False)]
)
def test_windows_of_a_power_of_two(size: int | tuple[int, int], power: bool) -> None:
    assert is_power_of_two(area(nn.AvgPool2d(size))) == power
