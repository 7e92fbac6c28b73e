"""The compiled integrate-and-fire program equals the definition, spike for spike and bit for bit."""

from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheobase.kernels import integrate_fire
from rheobase.kernels.integrate_fire import llvm

pytestmark = pytest.mark.skipif(find_spec("llvmlite") is None, reason="it needs the package llvmlite")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_equals_reference(data):
    draw = data.draw
    T, B, N = (
        draw(st.integers(1, 4)),
        draw(st.sampled_from([1, 2, 16])),
        draw(st.sampled_from([1, 3, 16, 33])),
    )
    Y, X = draw(st.sampled_from([(1, 1), (4, 4), (16, 16)]))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    constant, last = draw(st.booleans()), draw(st.booleans())
    current = torch.randn(*(() if constant else (T,)), B, N, Y, X, generator=seed)
    start = torch.rand(B, N, Y, X, generator=seed)
    if last:
        start = start.contiguous(memory_format=torch.channels_last)
    shape = draw(st.sampled_from([(), (N, 1, 1), (N, Y, X)]))
    threshold = torch.rand(shape, generator=seed) + 0.5
    threshold = torch.where(torch.rand(shape, generator=seed) < 0.2, float("inf"), threshold)
    options = {"strict": draw(st.booleans()), "reset": draw(st.sampled_from(["subtract", "zero"]))}
    dtype = draw(st.sampled_from([torch.uint8, torch.float32]))
    found = []
    for backend in ("reference", "cpu"):
        membrane = start.clone()
        out = torch.stack([torch.empty_like(start).fill_(9)] * T).to(dtype)
        if last:
            out = out.movedim(2, -1).contiguous().movedim(-1, 2)
        integrate_fire(current, membrane, threshold, steps=T, out=out, backend=backend, **options)
        found.append((out, membrane))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_runs_for_what_it_supports():
    current, membrane, spikes = torch.zeros(2, 32), torch.zeros(32), torch.zeros(2, 32)
    assert llvm.supports(current, membrane, spikes)
    assert not llvm.supports(current.double(), membrane.double(), spikes)
    assert not llvm.supports(current[:, :9], membrane[:9], spikes[:, :9])


def test_spikes_may_overwrite_their_currents():
    current = torch.randn(5, 2, 64, generator=torch.Generator().manual_seed(0))
    want = integrate_fire(current, torch.zeros(2, 64), torch.tensor(0.7), steps=5, backend="reference")
    got = integrate_fire(current, torch.zeros(2, 64), torch.tensor(0.7), steps=5, out=current, backend="cpu")
    assert got is current
    assert torch.equal(got, want)
