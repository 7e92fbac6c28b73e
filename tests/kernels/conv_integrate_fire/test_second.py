"""A second input of the fused convolution: as if both were one, and read where it is if that is possible."""

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import BACKENDS, DEVICE, channels_last
from rheobase.kernels import conv_integrate_fire, join_channels, reads_apart
from rheobase.kernels.conv_integrate_fire import second as module
from rheobase.kernels.conv_integrate_fire.tiles import Tile


def make_weight(N: int, C: int, more: int, kernel: int, dtype: torch.dtype, seed: torch.Generator) -> Tensor:
    """Weights for both inputs; those of the second at the middle tap alone."""
    weight = torch.randn(N, C + more, kernel, kernel, generator=seed) * (20 if dtype == torch.int8 else 1)
    middle = weight[:, C:, kernel // 2, kernel // 2].clone()
    weight[:, C:] = 0
    weight[:, C:, kernel // 2, kernel // 2] = middle
    return weight.to(dtype).to(DEVICE)


def run(spikes: Tensor, weight: Tensor, start: Tensor, threshold: Tensor, **options: Any) -> list[Tensor]:
    """Spikes, membrane, and how many spikes and synapses were counted."""
    steps, N = spikes.shape[:2], start.shape[1:]
    membrane = channels_last(start)
    totals = torch.zeros(steps, dtype=torch.int32, device=DEVICE)
    reached, fan_out = torch.zeros_like(totals, dtype=torch.int64), torch.full(N, 3, device=DEVICE)
    counts = {"totals": totals, "reached": reached, "fan_out": fan_out}
    fired = conv_integrate_fire(spikes, weight, None, membrane, threshold, **counts, **options)
    return [fired, membrane, totals, reached]


@settings(max_examples=15, deadline=None)
@example(
    T=1, B=1, sizes=(4, 4), channels=(16, 16), kernel=1, stride=(1, 1), extra=0, dtype=torch.float16,
    half=False, still=False, last=True, one_loop=False, number=0,
)  # fmt: skip
@given(
    T=st.integers(1, 2),
    B=st.integers(1, 3),
    sizes=st.sampled_from([(1, 1), (4, 4), (3, 2)]),
    channels=st.sampled_from([(16, 16), (32, 24), (20, 16), (32, 3)]),
    kernel=st.sampled_from([1, 3]),
    stride=st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    extra=st.integers(0, 1),
    dtype=st.sampled_from([torch.float16, torch.float32, torch.int8]),
    half=st.booleans(),
    still=st.booleans(),
    last=st.booleans(),
    one_loop=st.booleans(),
    number=st.integers(0, 999),
)
def test_two_inputs_are_one_with_the_channels_of_both(
    T, B, sizes, channels, kernel, stride, extra, dtype, half, still, last, one_loop, number
):
    """To the bit, though the weights are as they come: the order of a sum is the same."""
    seed, integer = torch.Generator().manual_seed(number), dtype == torch.int8
    (H, W), (C, more) = sizes, channels
    kind = torch.float16 if half and not integer else torch.uint8
    outer = [n * s - (extra if s > 1 else 0) for n, s in zip(sizes, stride, strict=True)]
    first = torch.randint(0, 2, (T, B, C, H, W), generator=seed).to(DEVICE, kind)
    whole = torch.randint(0, 2, (*([] if still else [T]), B, more, *outer), generator=seed).to(DEVICE, kind)
    if last:
        first, whole = channels_last(first), channels_last(whole)
    second = whole[..., :: stride[0], :: stride[1]]
    weight = make_weight(17, C, more, kernel, dtype, seed)
    number_kind = torch.int32 if integer else torch.float32
    start = torch.randn(B, 17, H, W, generator=seed).mul(9).to(DEVICE, number_kind)
    threshold = torch.rand(17, 1, 1, generator=seed).add(1).mul(20 if integer else 3).to(DEVICE, number_kind)
    joined = join_channels(first, second)
    tile = Tile(32, 32, 32 if integer else 16, 4, 2, one_loop=one_loop)
    options = {"padding": kernel // 2, "backend": "triton", "tile": tile}
    apart = run(first, weight, start, threshold, second=second, **options)
    together = run(joined, weight, start, threshold, **options)
    for got, want in zip(apart, together, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "C", "apart"),
    [(torch.float16, 64, True), (torch.float32, 64, True), (torch.int8, 128, True), (torch.int8, 64, False)],
)
def test_a_second_input_is_read_where_it_is(stride, kernel, dtype, C, apart, monkeypatch):
    """With the tiles that a GPU gets."""
    copies = []
    monkeypatch.setattr(module, "join_channels", lambda *x: copies.append(x) or join_channels(*x))
    seed = torch.Generator().manual_seed(0)
    kind, number = (torch.uint8, torch.int32) if dtype == torch.int8 else (torch.float16, torch.float32)
    first = channels_last(torch.randint(0, 2, (2, 2, C, 4, 4), generator=seed).to(DEVICE, kind))
    whole = channels_last(torch.randint(0, 2, (2, 2, 80, 4 * stride, 4 * stride), generator=seed))
    second = whole.to(DEVICE, kind)[..., ::stride, ::stride]
    weight = make_weight(16, C, 80, kernel, dtype, seed)
    start = torch.zeros(2, 16, 4, 4, dtype=number, device=DEVICE)
    threshold = torch.full((16, 1, 1), 9, dtype=number, device=DEVICE)
    joined = join_channels(first, second)
    assert reads_apart(weight, (C, 4, 4), kind.itemsize) == apart
    for backend in BACKENDS:
        copies.clear()
        options = {"padding": kernel // 2, "backend": backend}
        found = run(first, weight, start, threshold, second=second, **options)
        assert bool(copies) != (apart and backend == "triton")
        expected = run(joined, weight, start, threshold, **options)
        assert expected[0].any()
        for got, want in zip(found, expected, strict=True):
            assert torch.equal(got, want)


def test_weights_of_all_taps_need_both_inputs_in_one_place():
    weight = torch.ones(4, 80, 3, 3, dtype=torch.float16)
    assert not reads_apart(weight, (64, 4, 4), 2)
    weight[:, 64:] = 0
    assert reads_apart(weight, (64, 4, 4), 2)
    assert not reads_apart(weight, (64, 2, 2), 2)  # an image smaller than the kernel
    assert not reads_apart(weight[:, :76], (64, 4, 4), 2)  # pixels of 24 bytes


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        ((2, 1, 2, 3, 3), torch.uint8, ValueError, "second has shape"),
        ((2, 1, 3, 4, 4), torch.uint8, ValueError, "weight has shape"),
        ((2, 4), torch.uint8, ValueError, "second has shape"),
        ((2, 1, 2, 4, 4), torch.float32, TypeError, "second is torch.float32"),
    ],
)
def test_what_does_not_fit_is_refused(backend, shape, dtype, error, message):
    spikes, weight = torch.ones(2, 1, 3, 4, 4, dtype=torch.uint8), torch.ones(5, 5, 1, 1)
    membrane, second = torch.zeros(1, 5, 4, 4), torch.ones(shape, dtype=dtype)
    given_ = [x.to(DEVICE) for x in (spikes, weight, membrane, second)]
    with pytest.raises(error, match=message):
        conv_integrate_fire(
            *given_[:2], None, given_[2], given_[2].new_ones(()), second=given_[3], backend=backend
        )
    assert not given_[2].any()
