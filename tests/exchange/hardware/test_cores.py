"""Sizes of integers."""

import pytest

from rheobase.exchange.hardware.cores import bits_for


@pytest.mark.parametrize(
    ("value", "bits"), [(0, 1), (1, 2), (127, 8), (128, 9), (4095, 13), (4096, 14), (-127, 8)]
)
def test_bits(value: int, bits: int) -> None:
    assert bits_for(value) == bits
