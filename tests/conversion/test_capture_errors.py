"""Refusals become one error."""

import pytest
import torch
from torch import nn

from rheobase.conversion import CaptureError, capture


def test_calls_refused_alike_are_told_of_once() -> None:
    blocks = [layer for _ in range(3) for layer in (nn.Linear(4, 4), nn.GELU())]
    with pytest.raises(CaptureError) as error:
        capture(nn.Sequential(*blocks, nn.SiLU(), nn.Linear(4, 2)), torch.randn(8, 4))
    text = str(error.value)
    assert text.count("GELU is not a ReLU") == text.count("SiLU is not a ReLU") == 1
    assert text.count("->") == 2
    assert all(f"{place} (nn.GELU" in text for place in (1, 3, 5))
