import pytest
import torch

from rheobase.io import all_finite


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 517, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_value_that_is_not_finite_is_found(value: float, place: int, dtype: torch.dtype) -> None:
    values = torch.randn(10, 3, 8, 8).to(dtype)
    assert all_finite(values)
    assert all_finite(values.contiguous(memory_format=torch.channels_last))
    values.view(-1)[place] = value
    assert not all_finite(values)
    assert not all_finite(values.contiguous(memory_format=torch.channels_last))


def test_integers_and_nothing_are_finite() -> None:
    assert all_finite(torch.arange(3))
    assert all_finite(torch.empty(0, 2))
    assert not all_finite(torch.tensor([complex(0, torch.inf)]))
