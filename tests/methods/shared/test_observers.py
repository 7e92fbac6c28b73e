"""Observers: maxima and quantiles of many values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rheobase.methods.shared.observers import Maximum, Quantile

BOUND = 1 / 512


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_maximum_is_of_the_layer_or_of_each_channel(per_channel: bool) -> None:
    a = torch.randn(9, 4, 5, generator=torch.Generator().manual_seed(0))
    observer = Maximum(per_channel)
    for part in a.split(4):
        observer.update(part)
    assert torch.equal(observer.value, a.amax((0, 2)) if per_channel else a.amax())


def reference(a: Tensor, share: float, zeros: bool) -> Tensor:
    a = a.double().clamp(min=0).flatten()
    a = a if zeros else a[a > 0]
    return torch.quantile(a, share) if a.numel() else torch.zeros((), dtype=torch.float64)


class TestQuantile:
    @settings(max_examples=60, deadline=None)
    @given(
        st.integers(0, 2**31),
        st.floats(0, 1),
        st.booleans(),
        st.sampled_from([1e-20, 1.0, 1e20]),
        st.booleans(),
    )
    def test_it_is_that_of_torch_within_its_bound(
        self, seed: int, share: float, zeros: bool, scale: float, per_channel: bool
    ) -> None:
        a = torch.randn(9, 4, 5, generator=torch.Generator().manual_seed(seed)) * scale
        a[:, 0] = -1.0  # a channel without any positive value
        observer = Quantile(share, zeros=zeros, per_channel=per_channel)
        for part in a.split(4):
            observer.update(part)
        expected = (
            [reference(c, share, zeros) for c in a.unbind(1)] if per_channel else [reference(a, share, zeros)]
        )
        found = observer.value.double().flatten()
        for e, f in zip(expected, found, strict=True):
            assert abs(f - e) <= BOUND * e * (1 + 1e-6)  # and the last rounding to single precision

    def test_counting_and_sorting_find_the_same(self) -> None:
        """More values than bins are counted in another way than fewer."""
        a = torch.rand(300_000, 1, generator=torch.Generator().manual_seed(0))
        whole, parts = Quantile(0.4), Quantile(0.4)
        whole.update(a)
        for part in a.split(30_000):
            parts.update(part)
        assert torch.equal(whole.value, parts.value)
        assert torch.equal(whole.counts, parts.counts)

    def test_memory_does_not_grow_with_the_values(self) -> None:
        observer, sizes = Quantile(0.5), []
        for seed in range(4):
            values = torch.rand(200_000, generator=torch.Generator().manual_seed(seed))
            observer.update(2 ** (8 * values[None]))  # eight octaves of 256 bins
            sizes.append(observer.bins.numel())
        assert sizes == [8 * 256] * 4
