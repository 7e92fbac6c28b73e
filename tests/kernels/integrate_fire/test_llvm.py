"""The compiled integrate-and-fire program equals the definition, spike for spike and bit for bit."""

import torch

from rheobase.kernels import integrate_fire
from rheobase.kernels.integrate_fire import llvm


def test_runs_for_what_it_supports():
    current, membrane, spikes = torch.zeros(2, 9), torch.zeros(9), torch.zeros(2, 9)
    assert llvm.supports(current, membrane, spikes)
    assert llvm.supports(current.double(), membrane.double(), spikes.double())
    assert not llvm.supports(current.bfloat16(), membrane, spikes)
    assert not llvm.supports(current.double(), membrane.double(), spikes)


def test_spikes_may_overwrite_their_currents():
    current = torch.randn(5, 2, 67, generator=torch.Generator().manual_seed(0))
    want = integrate_fire(current, torch.zeros(2, 67), torch.tensor(0.7), steps=5, backend="reference")
    got = integrate_fire(current, torch.zeros(2, 67), torch.tensor(0.7), steps=5, out=current, backend="cpu")
    assert got is current
    assert torch.equal(got, want)
