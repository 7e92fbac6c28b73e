"""The compiled integrate-and-fire program equals the definition, spike for spike and bit for bit."""

from importlib.util import find_spec

import pytest
import torch

from rheobase.kernels import integrate_fire
from rheobase.kernels.integrate_fire import llvm

pytestmark = pytest.mark.skipif(find_spec("llvmlite") is None, reason="it needs the package llvmlite")


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
