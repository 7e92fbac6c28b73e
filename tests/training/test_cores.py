"""Training on cores that others may need."""

import threading

import pytest
import torch
from torch import nn

from rheobase.training.cores import suit_cores


@pytest.fixture(autouse=True)
def two_threads(restored_threads: None) -> None:
    torch.set_num_threads(2)


@pytest.mark.parametrize(("batch", "cores"), [(1024, 1), (2**18, 2)])
def test_small_networks_are_trained_on_one_core(batch: int, cores: int) -> None:
    """A forward pass of one input takes 27 · 4 · 10² + 400 · 3 products."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 3))
    before = threading.active_count()
    with suit_cores(model, torch.randn(1, 3, 12, 12), batch):
        assert torch.get_num_threads() == cores
        assert threading.active_count() == before + (cores > 1)
        assert model.training
    assert torch.get_num_threads() == 2
    assert threading.active_count() == before
    assert not model[0]._forward_hooks


def test_an_error_restores_the_threads() -> None:
    with pytest.raises(KeyboardInterrupt), suit_cores(nn.Linear(2, 2), torch.randn(1, 2), 1):
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2
