"""Counting and pooling of spikes: the fast kernels equal their definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BACKENDS, DEVICE
from rheobase.kernels import sum_pool, tally


@settings(max_examples=25, deadline=None)
@given(
    T=st.integers(1, 4),
    B=st.sampled_from([1, 2, 3, 20]),
    shape=st.sampled_from([(5,), (8,), (3, 4, 2), (16, 1, 1), (1, 7, 5)]),
    last=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.float32]),
    seed=st.integers(0, 999),
)
def test_tally_counts_every_step(T, B, shape, last, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randint(0, 3, (T, B, *shape), generator=generator).to(dtype)
    fan_out = torch.randint(0, 50, shape, generator=generator).double()
    if last and len(shape) == 3:
        signal = signal.movedim(2, -1).contiguous().movedim(-1, 2)
    expected = [sum(int(v != 0) for v in step.flatten().tolist()) for step in signal]
    reached = ((signal != 0).double() * fan_out).flatten(1).sum(1).long()
    for backend in BACKENDS:
        spikes, synapses = tally(signal.to(DEVICE), fan_out.to(DEVICE), backend=backend)
        assert spikes.tolist() == expected
        assert synapses.tolist() == reached.tolist()
        assert tally(signal.to(DEVICE), backend=backend)[0].tolist() == expected
        ones = (signal != 0).to(signal.dtype).to(DEVICE)
        assert tally(ones, binary=True, backend=backend)[0].tolist() == expected


def test_bytes_are_counted_beyond_what_one_byte_holds():
    signal = torch.ones(2, 600, 16, dtype=torch.uint8)
    spikes, reached = tally(signal, torch.full((16,), 3.0), binary=True, backend="cpu")
    assert spikes.tolist() == [9600, 9600]
    assert reached.tolist() == [28800, 28800]


@settings(max_examples=25, deadline=None)
@given(
    R=st.integers(1, 3),
    C=st.sampled_from([1, 3, 16, 40]),
    H=st.integers(2, 7),
    W=st.integers(2, 7),
    side=st.sampled_from([1, 2]),
    last=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.float16]),
)
def test_sum_pool_is_average_pooling_times_its_window(R, C, H, W, side, last, dtype):
    counts = torch.randint(0, 5, (R, C, H, W), generator=torch.Generator().manual_seed(H * W))
    form = torch.channels_last if last else torch.contiguous_format
    expected = torch.nn.functional.avg_pool2d(counts.float(), side) * side**2
    for backend in BACKENDS[:2]:
        pooled = sum_pool(counts.to(DEVICE, dtype).contiguous(memory_format=form), side, backend=backend)
        assert pooled.dtype == dtype
        assert torch.equal(pooled.float().cpu(), expected)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        sum_pool(torch.zeros(1, 1, 2, 2), 3)
    with pytest.raises(ValueError, match="expected one sample's"):
        tally(torch.zeros(2, 2, 4), torch.ones(5))
