"""Linear layers with few outputs: the fast kernel is as exact as single precision, and treats rows alike."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import DEVICE
from rheobase.kernels import few_outputs


@settings(max_examples=20, deadline=None)
@given(
    R=st.sampled_from([1, 5, 16, 33]),
    C=st.sampled_from([1, 7, 64, 200]),
    N=st.sampled_from([1, 3, 10, 17, 32]),
    biased=st.booleans(),
    seed=st.integers(0, 999),
)
def test_it_is_the_linear_layer_and_no_row_depends_on_others(R, C, N, biased, seed):
    generator = torch.Generator().manual_seed(seed)
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((R, C), (N, C), (N,)))
    x, weight, bias = x.to(DEVICE), weight.to(DEVICE), bias.to(DEVICE) if biased else None
    exact, whole = (few_outputs(x, weight, bias, backend=name) for name in ("reference", "triton"))
    # The error of any order of C products in single precision.
    bound = (C + 1) * 2**-24 * (x.abs() @ weight.abs().T + (0 if bias is None else bias.abs()))
    assert whole.shape == (R, N)
    assert bool(((whole - exact).abs() <= bound + 2**-24 * exact.abs()).all())
    order = torch.randperm(R, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    assert torch.equal(few_outputs(x[order], weight, bias, backend="triton"), whole[order])
    for i in (0, R // 2, R - 1):
        assert torch.equal(few_outputs(x[i : i + 1], weight, bias, backend="triton"), whole[i : i + 1])


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="weight"):
        few_outputs(torch.zeros(2, 3), torch.zeros(4, 5), None)
    with pytest.raises(TypeError, match="float64"):
        few_outputs(torch.zeros(2, 3).double(), torch.zeros(4, 3), None)
