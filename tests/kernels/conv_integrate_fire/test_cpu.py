"""The convolution with neurons on a CPU equals its definition, spike for spike.

Float weights, biases, thresholds and potentials are small multiples of 1/64, so that every order of summation
is exact.
"""

from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import channels_last
from rheobase.kernels import conv_integrate_fire, integrate_fire
from rheobase.kernels.conv_integrate_fire import cpu, events, reference, tables
from rheobase.kernels.conv_integrate_fire.avx512 import explain_no_avx512
from rheobase.kernels.conv_integrate_fire.packing import fits_16_bits
from rheobase.kernels.conv_integrate_fire.problem import Problem
from rheobase.kernels.routines import collect_routines
from rheobase.network.batch_invariant import is_direct, weigh

needs_avx512 = pytest.mark.skipif(
    explain_no_avx512() is not None, reason=f"no AVX-512: {explain_no_avx512()}"
)
needs_direct = pytest.mark.skipif(
    not is_direct(torch.nn.Conv2d(1, 1, 1), torch.float32),
    reason="`exact` fuses no convolutions here: oneDNN's order of sums is known on x86 only",
)
WRITTEN = ("membrane", "out", "totals")
WEIGHTS = (torch.int8, torch.bfloat16, torch.float32)


@st.composite
def problems(draw, weights=WEIGHTS, *, binary=False):
    """Problems of odd sizes, with one step, channel, sample or pixel.

    Those that are `binary` suit tables and events.
    """
    dtype = draw(st.sampled_from(weights))
    integer = dtype == torch.int8
    T, B = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    C = draw(st.sampled_from([16, 32, 48] if binary else [1, 3, 16, 20, 32, 64, 65]))
    N = draw(st.sampled_from([16, 48, 128] if binary else [1, 3, 16, 20]))
    H, W = draw(st.integers(1, 19)), draw(st.integers(1, 19))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (3, 3), (1, 3), (5, 5)]))
    stride = (draw(st.integers(1, 3)),) * 2 if binary else (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    least = (max(0, -(-(k - n) // 2)) for k, n in zip(kernel, (H, W), strict=True))
    padding = tuple(draw(st.integers(low, max(2, low))) for low in least)
    if binary:  # so that the number of output pixels is a multiple of 8
        X, Y = draw(st.integers(1, 19)), draw(st.sampled_from([8, 16]))
        H, W = ((n - 1) * s + k - 2 * p for n, s, k, p in zip((Y, X), stride, kernel, padding, strict=True))
        assume(H > 0 < W)
    Y, X = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip((H, W), padding, kernel, stride, strict=True))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    place = channels_last if binary or draw(st.booleans()) else torch.clone

    def numbers(*size: int, low: int = -20, high: int = 21) -> Tensor:
        values = torch.randint(low, high, size, generator=seed)
        return values.int() if integer else values / 64

    def spiking(*size: int) -> Tensor:
        largest = 1 if binary else draw(st.sampled_from([1, 1, 4, 127]))
        return torch.randint(0, largest + 1, size, generator=seed).to(torch.uint8)

    residual, scale = None, None
    if draw(st.booleans()):
        shape = (T, B, N, Y, X) if binary or draw(st.booleans()) else (B, N, Y, X)
        residual = place(spiking(*shape) if binary or draw(st.booleans()) else numbers(*shape))
        scale = numbers(N, low=-5, high=6) if draw(st.booleans()) else None
    kind = torch.uint8 if binary else draw(st.sampled_from([torch.uint8, torch.float32]))
    limits = {"low": -128, "high": 128} if integer else {"low": -8, "high": 9}
    weight = numbers(N, C, *kernel, **limits).to(dtype)
    if binary and draw(st.booleans()):  # a shortcut: only the middle tap sees the last channels
        weight[:, 16:, : kernel[0] // 2] = weight[:, 16:, kernel[0] // 2 + 1 :] = 0
        weight[:, 16:, :, : kernel[1] // 2] = weight[:, 16:, :, kernel[1] // 2 + 1 :] = 0
    return Problem(
        spikes=place(spiking(T, B, C, H, W)),
        weight=weight,
        bias=numbers(N) if draw(st.booleans()) else None,
        membrane=place(numbers(B, N, Y, X)),
        threshold=numbers(
            *draw(st.sampled_from([(), (N, 1, 1)] if binary else [(), (N, 1, 1), (N, Y, X)])), low=1, high=400
        ),
        out=place(torch.full((T, B, N, Y, X), 99, dtype=kind)),
        stride=stride,
        padding=padding,
        residual=residual,
        residual_scale=scale,
        totals=torch.full((T, B), 7, dtype=torch.int32) if draw(st.booleans()) else None,
        strict=draw(st.booleans()),
        reset=draw(st.sampled_from(["subtract", "zero"])),
    )


def copy(problem: Problem) -> Problem:
    """Return the problem with an own membrane, output and totals."""
    values = {name: getattr(problem, name) for name in WRITTEN}
    own = {name: value.clone() for name, value in values.items() if value is not None}
    return Problem(**vars(problem) | own)


def assert_alike(got: Problem, want: Problem) -> None:
    """Check that two problems were solved alike."""
    for name in WRITTEN:
        if getattr(want, name) is not None:
            assert torch.equal(getattr(got, name), getattr(want, name)), name


def solve(problem: Problem, run, **options) -> Problem:
    """Return a copy of the problem with its results filled in."""
    own = copy(problem)
    run(own, **options)
    return own


@settings(max_examples=60, deadline=None)
@given(problem=problems(), piece=st.sampled_from([1, 500, 5000, cpu.PIECE]))
def test_equals_reference_however_it_is_cut(problem, piece):
    assert_alike(solve(problem, cpu.run_in_pieces, piece=piece), solve(problem, reference.run))


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_windows_that_see_nothing_but_padding(dtype):
    integer = dtype == torch.int8
    spikes = torch.ones(1, 2, 65, 17, 1, dtype=torch.uint8)
    weight = torch.ones(6, 65, 1, 1).to(dtype)
    kind = torch.int32 if integer else torch.float32
    membrane, threshold = torch.zeros(2, 6, 9, 2, dtype=kind), torch.tensor(66, dtype=kind)
    options = {"stride": 2, "padding": (0, 1), "backend": "cpu"}
    fired = conv_integrate_fire(spikes, weight, None, membrane, threshold, **options)
    assert not fired.any()
    assert not membrane.any()


def test_unequal_strides_over_one_channel():
    torch.manual_seed(0)
    spikes = torch.randint(0, 2, (1, 2, 1, 4, 1), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (16, 1, 3, 3), dtype=torch.int8)
    found = []
    for backend in ("cpu", "reference"):
        membrane = torch.zeros(2, 16, 4, 1, dtype=torch.int32)
        conv_integrate_fire(
            spikes, weight, None, membrane, torch.tensor(2**20, dtype=torch.int32),
            stride=(1, 2), padding=1, backend=backend,
        )  # fmt: skip
        found.append(membrane)
    assert torch.equal(*found)


@settings(max_examples=20, deadline=None)
@given(problem=problems(weights=(torch.int8,)))
def test_equals_reference_without_integer_convolutions(problem):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "can_multiply_integers", lambda: False)
        assert_alike(solve(problem, cpu.run_in_pieces), solve(problem, reference.run))


@settings(max_examples=15, deadline=None)
@given(problem=problems(weights=(torch.int8,)), data=st.data())
def test_large_integers_are_exact(problem, data):
    """Potentials beyond what single precision holds: the run halves its steps, down to the reference."""
    problem.membrane.mul_(data.draw(st.sampled_from([2**18, 2**22, 2**24])))
    assert_alike(solve(problem, cpu.run_in_pieces), solve(problem, reference.run))


@needs_avx512
@settings(max_examples=20, deadline=None)
@given(problem=problems(weights=(torch.int8,), binary=True))
def test_tables_equal_reference(problem):
    assume(fits_16_bits(problem.weight))
    assert tables.supports(problem)
    assert_alike(solve(problem, tables.run), solve(problem, reference.run))


@needs_avx512
@settings(max_examples=20, deadline=None)
@given(problem=problems(binary=True))
def test_events_equal_reference(problem):
    assert events.supports(problem) == events.few_spike(problem)
    assert_alike(solve(problem, events.run), solve(problem, reference.run))


@needs_avx512
@pytest.mark.parametrize(("C", "kernel", "stride"), [(16, 3, 1), (48, 3, 2), (128, 1, 1), (64, 7, 2)])
def test_no_bit_depends_on_how_many_inputs_spike(C, kernel, stride):
    """With rounded sums: by events if few spike, else by oneDNN, unless that adds in another order."""
    draw, routines = torch.Generator().manual_seed(C), []
    weight = torch.randn(32, C, kernel, kernel, generator=draw)
    spikes = channels_last((torch.rand(3, 2, C, 14, 14, generator=draw) < 0.4).to(torch.uint8))
    found = []
    for few in (0.0, 1.0):
        membrane = channels_last(torch.zeros(2, 32, 14 // stride, 14 // stride))
        with collect_routines() as names, patch.dict(events.FEW, float32=few):
            fired = conv_integrate_fire(
                spikes,
                weight,
                None,
                membrane,
                torch.tensor(1.0),
                stride=stride,
                padding=kernel // 2,
                backend="cpu",
            )
        routines.append(names)
        found.append((fired, membrane))
    assert "oneDNN float32" in routines[0]
    assert routines[1] == ["events"] or kernel == 7
    assert all(map(torch.equal, *found))
    assert found[0][0].any()


@needs_avx512
@pytest.mark.parametrize(
    ("weights", "largest", "routine"), [(258, 1, "tables"), (259, 1, "oneDNN int8"), (258, 2, "oneDNN int8")]
)
def test_what_tables_do_not_hold_is_multiplied(weights, largest, routine):
    """Sums beyond 16 bits, and counts."""
    spikes = torch.full((1, 1, 64, 8, 8), largest, dtype=torch.uint8)
    weight = torch.zeros(16, 64, 3, 3, dtype=torch.int8)
    weight[3].view(-1)[:weights] = 127
    membrane = channels_last(torch.zeros(1, 16, 8, 8, dtype=torch.int32))
    threshold = torch.tensor(2**30, dtype=torch.int32)
    with collect_routines() as routines:
        conv_integrate_fire(spikes, weight, None, membrane, threshold, padding=1, backend="cpu")
    assert routine in routines
    assert membrane.max() == largest * weights * 127


@pytest.mark.parametrize("way", ["pieces", pytest.param("programs", marks=needs_avx512)])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), cut=st.integers(1, 5), b=st.integers(1, 4), dtype=st.sampled_from(WEIGHTS))
def test_does_not_depend_on_batch_or_chunks(way, seed, cut, b, dtype):
    """Bit for bit, with weights whose sums are rounded."""
    draw = torch.Generator().manual_seed(seed)
    integer = dtype == torch.int8
    spikes = channels_last((torch.rand(6, 5, 16, 8, 9, generator=draw) < 0.3).to(torch.uint8))
    weight = torch.randn(32, 16, 3, 3, generator=draw)
    weight = (weight * 40).clamp(-127, 127).to(dtype) if integer else weight.to(dtype)
    threshold = torch.tensor(300, dtype=torch.int32) if integer else torch.tensor(3.0)
    start = channels_last(torch.zeros(5, 32, 8, 9, dtype=threshold.dtype))

    def run(spikes: Tensor, membrane: Tensor) -> Tensor:
        for other in {"programs": [], "pieces": [tables, events]}[way]:
            patch.setattr(other, "supports", lambda problem: False)
        return conv_integrate_fire(spikes, weight, None, membrane, threshold, padding=1, backend="cpu")

    with pytest.MonkeyPatch.context() as patch:
        whole = start.clone()
        want = run(spikes, whole)
        for samples in (slice(b), slice(b, None)):
            membrane = channels_last(start[samples])
            chunks = (slice(cut), slice(cut, None))
            got = torch.cat([run(spikes[steps, samples], membrane) for steps in chunks])
            assert torch.equal(got, want[:, samples])
            assert torch.equal(membrane, whole[samples])
    assert want.any()
    assert not want.all()


@needs_direct
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), stride=st.integers(1, 2), C=st.sampled_from([3, 16, 64]))
def test_float32_equals_the_two_parts_bit_for_bit(seed, stride, C):
    """With rounded sums: the convolution of the whole chunk, then the neurons."""
    draw = torch.Generator().manual_seed(seed)
    conv = torch.nn.Conv2d(C, 16, 3, stride, 1)
    with torch.no_grad():
        conv.weight.normal_(generator=draw)
        spikes = channels_last((torch.rand(4, 3, C, 9, 9, generator=draw) < 0.2).to(torch.uint8))
        current = weigh(conv, spikes.flatten(0, 1).float()).unflatten(0, (4, 3))
        residual = channels_last((torch.rand(current.shape, generator=draw) < 0.3).to(torch.uint8))
        scale, threshold = torch.rand(16, generator=draw), torch.rand(16, 1, 1, generator=draw) + 1
        current = current + residual * scale[:, None, None]
        potential = channels_last(torch.zeros(current.shape[1:]))
        membrane = potential.clone()
        want = integrate_fire(current, potential, threshold, steps=4, backend="reference")
        got = conv_integrate_fire(
            spikes,
            conv.weight,
            conv.bias,
            membrane,
            threshold,
            stride=stride,
            padding=1,
            residual=residual,
            residual_scale=scale,
            backend="cpu",
        )
    assert torch.equal(got.float(), want)
    assert torch.equal(membrane, potential)


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_changed_weights_are_seen(dtype):
    weight = torch.ones(3, 2, 1, 1).to(dtype)
    spikes = torch.ones(1, 1, 2, 4, 4, dtype=torch.uint8)
    kind = torch.int32 if dtype == torch.int8 else torch.float32
    for factor in (1, 5):
        weight.mul_(factor)
        membrane = torch.zeros(1, 3, 4, 4, dtype=kind)
        threshold = torch.tensor(100, dtype=kind)
        conv_integrate_fire(spikes, weight, None, membrane, threshold, backend="cpu")
        assert (membrane == 2 * factor).all()


def test_weights_of_two_bytes():
    """Those of at least 1/64 of the largest one are the same, and all are near."""
    weight = torch.randn(5, 3, 3, 3, generator=torch.manual_seed(0)).bfloat16().float()
    weight[0, 0, 0, 0], weight[1] = -4.0, 0.0
    parts, unit = cpu.split(weight)
    high, low = parts.unflatten(1, (3, 2)).float().unbind(2)
    found = (128 * high + low) * unit.view(-1, 1, 1, 1)
    largest = weight.abs().amax((1, 2, 3), keepdim=True)
    large = weight.abs() >= largest / 64
    assert torch.equal(found[large], weight[large])
    assert ((found - weight).abs() <= largest * 2**-14).all()


@pytest.mark.skipif(not cpu.can_multiply_integers(), reason="no integer convolution")
def test_spikes_of_bfloat16_weights_are_weighed_in_integers():
    generator = torch.manual_seed(0)
    weight = torch.randn(16, 8, 3, 3, generator=generator).bfloat16()
    for largest, routine in ((1, "oneDNN int8"), (2, "oneDNN float32")):
        spikes = torch.randint(0, largest + 1, (3, 2, 8, 6, 6), generator=generator, dtype=torch.uint8)
        membranes = [torch.zeros(2, 16, 6, 6) for _ in range(2)]
        silent = torch.tensor(torch.finfo(torch.float32).max)
        with collect_routines() as routines:
            conv_integrate_fire(spikes, weight, None, membranes[0], silent, padding=1, backend="cpu")
        conv_integrate_fire(spikes, weight, None, membranes[1], silent, padding=1, backend="reference")
        assert routine in routines
        torch.testing.assert_close(*membranes, rtol=1e-4, atol=1e-3)
