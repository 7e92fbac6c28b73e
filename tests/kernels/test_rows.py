"""Rows of neurons: membranes are filled with any potentials that broadcast to them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DEVICE
from rheobase.kernels import fill_membrane


@settings(max_examples=60, deadline=None)
@given(
    B=st.integers(1, 3),
    shape=st.sampled_from([(1,), (3,), (8,), (64,), (4, 3, 2), (8, 1, 1), (5, 4, 4), (1, 4, 4), (8, 2, 8)]),
    vary=st.lists(st.booleans(), min_size=4, max_size=4),
    last=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int32]),
    seed=st.integers(0, 999),
)
def test_every_potential_is_written(B, shape, vary, last, dtype, seed):
    sizes = [size if varies else 1 for size, varies in zip((B, *shape), vary, strict=False)]
    potential = torch.randint(-1000, 1000, sizes, generator=torch.Generator().manual_seed(seed)) / 8
    form = torch.channels_last if last and len(shape) == 3 else torch.contiguous_format
    membrane = torch.empty((B, *shape), dtype=dtype, device=DEVICE, memory_format=form).fill_(7)
    strides, potential = membrane.stride(), potential.to(DEVICE, dtype)
    for given_ in (potential, potential[0], potential.squeeze() if potential.numel() == 1 else potential):
        filled = fill_membrane(membrane.fill_(7), given_)
        assert filled is membrane
        assert filled.stride() == strides
        assert torch.equal(filled, given_.expand(B, *shape))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_potentials_in_the_middle_of_memory_or_of_another_kind_are_written(kind):
    membrane = torch.zeros(2, 8, 3, 3, device=DEVICE).contiguous(memory_format=torch.channels_last)
    potential = torch.arange(9, device=DEVICE, dtype=kind)[1:].view(8, 1, 1)
    assert torch.equal(fill_membrane(membrane, potential), potential.float().expand(2, 8, 3, 3))
