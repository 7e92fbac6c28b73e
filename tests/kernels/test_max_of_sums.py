"""Changes of maxima of sums: the fast kernel equals its definition, however time is cut."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BACKENDS, DEVICE, channels_last
from rheobase.kernels import max_of_sums


@settings(max_examples=20, deadline=None)
@given(
    T=st.integers(1, 4),
    cut=st.integers(0, 4),
    channels=st.sampled_from([1, 3, 16]),
    side=st.integers(4, 6),
    window=st.sampled_from([((3, 3), (2, 2), (1, 1)), ((2, 2), (2, 2), (0, 0)), ((3, 2), (1, 2), (1, 0))]),
    last=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.float32]),
    seed=st.integers(0, 999),
)
def test_sums_of_changes_are_the_maxima_of_sums(T, cut, channels, side, window, last, dtype, seed):
    draw = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 2, (T, 2, channels, side, side), generator=draw).to(dtype)
    counts = (channels_last(counts) if last else counts).to(DEVICE)
    sums = torch.stack([counts[: t + 1].float().sum(0) for t in range(T)])
    want = F.max_pool2d(sums.flatten(0, 1), *window).unflatten(0, (T, 2))
    for backend in [name for name in BACKENDS if name != "cpu"]:
        total = torch.zeros_like(counts[0], dtype=torch.float32)
        parts = [part for part in (counts[:cut], counts[cut:]) if len(part)]
        changes = torch.cat([max_of_sums(part, total, *window, backend=backend) for part in parts])
        assert changes.dtype == dtype
        assert torch.equal(changes.float().cumsum(0), want)
        assert torch.equal(total, sums[-1])


def test_totals_that_do_not_fit_are_refused():
    counts = torch.zeros(2, 3, 4, 6, 6)
    with pytest.raises(ValueError, match="total"):
        max_of_sums(counts, torch.zeros(3, 4, 6, 5), (2, 2), (2, 2), (0, 0))
    with pytest.raises(TypeError, match="total"):
        max_of_sums(counts, torch.zeros(3, 4, 6, 6, dtype=torch.int64), (2, 2), (2, 2), (0, 0))
