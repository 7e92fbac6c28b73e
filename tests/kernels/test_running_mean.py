"""Running means: the fast kernel equals its definition to the bit, however time is cut."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import BACKENDS, DEVICE, channels_last
from rheobase.kernels import running_mean


@settings(max_examples=25, deadline=None)
@given(
    T=st.integers(1, 5),
    cut=st.integers(0, 5),
    shape=st.sampled_from([(1,), (7,), (3, 4, 5), (16, 2, 2)]),
    last=st.booleans(),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.float32]),
    unit=st.sampled_from([1.0, 0.25, 1 / 49]),
    seed=st.integers(0, 999),
)
def test_every_step_has_its_mean(T, cut, shape, last, dtype, unit, seed):
    signal = torch.randint(0, 5, (T, 2, *shape), generator=torch.Generator().manual_seed(seed)).to(dtype)
    if last and len(shape) == 3:
        signal = channels_last(signal)
    signal = signal.to(DEVICE)
    sums = torch.stack([signal[: t + 1].float().sum(0) for t in range(T)])
    want = torch.stack([sums[t] / torch.tensor(float(3 + t + 1)) for t in range(T)]) * unit
    for backend in BACKENDS:
        total = torch.zeros_like(signal[0], dtype=torch.float32)
        parts = [part for part in (signal[:cut], signal[cut:]) if len(part)]
        before, found = 3, []
        for part in parts:
            found.append(running_mean(part, total, before, unit=unit, backend=backend))
            before += len(part)
        got = torch.cat(found)
        assert torch.equal(got, want)
        assert torch.equal(total, sums[-1])
        if last and len(shape) == 3 and backend == "triton":
            assert found[0].flatten(0, 1).is_contiguous(memory_format=torch.channels_last)


def test_totals_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="total"):
        running_mean(torch.zeros(2, 3, 4), torch.zeros(3, 5), 0)
    with pytest.raises(TypeError, match="total"):
        running_mean(torch.zeros(2, 3, 4), torch.zeros(3, 4, dtype=torch.int64), 0)
