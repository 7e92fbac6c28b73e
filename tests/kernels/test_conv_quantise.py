"""The convolution rounded to counts equals its definition, and that a plain loop.

Weights, biases and thresholds are small multiples of 1/64, so that every order of summation is exact.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import BACKENDS, DEVICE, channels_last
from rheobase.kernels import conv_quantise
from rheobase.kernels.conv_integrate_fire.tiles import Tile


@st.composite
def problems(draw):
    """Arguments of `conv_quantise`, of odd sizes that leave blocks and images partly empty."""
    T, B, H, W = (draw(st.integers(1, size)) for size in (3, 3, 6, 8))
    C, N = draw(st.sampled_from([1, 3, 16, 20])), draw(st.sampled_from([1, 5, 16, 33]))
    kernel = draw(st.sampled_from([1, 3]))
    stride, padding = draw(st.integers(1, 2)), kernel // 2
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.int8]))
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    number = torch.int32 if dtype == torch.int8 else torch.float32
    unit = 1 if dtype == torch.int8 else 64

    def numbers(*size: int, low: int, high: int) -> Tensor:
        return (torch.randint(low, high, size, generator=seed) / unit).to(number)

    most = draw(st.sampled_from([2, 17, 128]))
    problem = {
        "spikes": torch.randint(0, most, (T, B, C, H, W), generator=seed).to(torch.uint8),
        "weight": numbers(N, C, kernel, kernel, low=-8, high=9).to(dtype),
        "bias": draw(st.sampled_from([None, numbers(N, low=-60, high=61)])),
        "threshold": numbers(N, low=1, high=draw(st.sampled_from([3, 200]))),
        "high": torch.randint(0, draw(st.sampled_from([2, 128])), (N,), generator=seed).to(number),
        "stride": stride,
        "padding": padding,
    }
    if draw(st.booleans()):
        Y, X = ((n + 2 * padding - kernel) // stride + 1 for n in (H, W))
        shape = draw(st.sampled_from([(T, B, N, Y, X), (B, N, Y, X)]))
        counts = torch.randint(0, most, shape, generator=seed).to(torch.uint8)
        problem["residual"] = draw(st.sampled_from([counts, numbers(*shape, low=-60, high=61)]))
        problem["residual_scale"] = draw(st.sampled_from([None, numbers(N, low=-5, high=6)]))
    if draw(st.booleans()):
        maps = ("spikes", "residual") if "residual" in problem else ("spikes",)
        problem |= {name: channels_last(problem[name]) for name in maps}
    return problem


def expected_counts(problem: dict) -> Tensor:
    """By Python's exact integers: all numbers are multiples of one unit."""
    unit = 1 if problem["weight"].dtype == torch.int8 else 64
    whole = {k: (v.double() * unit).long() for k, v in problem.items() if isinstance(v, Tensor)}
    T, B = problem["spikes"].shape[:2]
    rows = problem["spikes"].flatten(0, 1).double()
    z = F.conv2d(rows, whole["weight"].double(), None, problem["stride"], problem["padding"]).long()
    z = z.unflatten(0, (T, B)) * unit
    if problem["bias"] is not None:
        z = z + whole["bias"][:, None, None] * unit
    if (residual := problem.get("residual")) is not None:
        factor = problem.get("residual_scale")
        factor = torch.full((1,), unit) if factor is None else whole["residual_scale"]
        z = z + (residual.double() * unit).long() * factor[:, None, None]
    count = [
        [min(max(value // theta, 0), top) for value in values]
        for values, theta, top in zip(
            z.movedim(2, 0).flatten(1).tolist(),
            (whole["threshold"] * unit).tolist(),
            problem["high"].long().tolist(),
            strict=True,
        )
    ]
    return torch.tensor(count).view(z.movedim(2, 0).shape).movedim(0, 2)


@settings(max_examples=40, deadline=None)
@given(
    problem=problems(),
    dtype=st.sampled_from([torch.uint8, torch.bfloat16, torch.float16, torch.float32]),
    one_loop=st.booleans(),
)
def test_every_backend_gives_the_same_counts(problem, dtype, one_loop):
    expected = expected_counts(problem)
    tile = Tile(16, 16, 32 if problem["weight"].dtype == torch.int8 else 16, 4, 2, one_loop=one_loop)
    given = {k: v.to(DEVICE) if isinstance(v, Tensor) else v for k, v in problem.items()}
    for backend in BACKENDS:
        out = channels_last(torch.full(expected.shape, 99.0)).to(DEVICE, dtype)
        assert conv_quantise(**given, out=out, tile=tile, backend=backend) is out
        assert torch.equal(out.cpu().long(), expected), backend
    assert torch.equal(conv_quantise(**given).cpu().long(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("theta", [3, 1000003, 2**23 + 1])
def test_integers_beyond_single_precision_are_divided_exactly(backend, theta):
    """Quotients just below, at and above integers, of sums that single precision rounds."""
    counts = torch.arange(128)
    z = torch.cat([counts * theta + offset for offset in (-1, 0, 1)]).int()
    spikes = torch.zeros(1, 1, 1, 1, 1, dtype=torch.uint8, device=DEVICE)
    weight = torch.zeros(len(z), 1, 1, 1, dtype=torch.int8, device=DEVICE)
    threshold, high = (torch.full((len(z),), n, dtype=torch.int32, device=DEVICE) for n in (theta, 127))
    got = conv_quantise(spikes, weight, z.to(DEVICE), threshold, high, backend=backend)
    assert got.flatten().tolist() == [min(max(v // theta, 0), 127) for v in z.tolist()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_silent_channels_stay_at_zero(backend):
    largest = torch.finfo(torch.float32).max
    spikes = torch.full((1, 1, 4, 1, 1), 127, dtype=torch.uint8, device=DEVICE)
    weight = torch.tensor([9.0, 9.0], device=DEVICE).expand(4, 2).T[..., None, None].contiguous()
    threshold = torch.tensor([largest, 1.0], device=DEVICE)
    for high, expected in ((127.0, [0, 127]), (0.0, [0, 0])):
        got = conv_quantise(
            spikes, weight, None, threshold, torch.full_like(threshold, high), backend=backend
        )
        assert got.flatten().tolist() == expected


def test_what_does_not_fit_is_refused():
    given = {
        "spikes": torch.zeros(1, 1, 3, 4, 4, dtype=torch.uint8),
        "weight": torch.ones(5, 3, 3, 3),
        "bias": None,
        "threshold": torch.ones(5),
        "high": torch.ones(5),
    }
    with pytest.raises(ValueError, match=r"high has shape \(4,\)"):
        conv_quantise(**given | {"high": torch.ones(4)})
    with pytest.raises(TypeError, match=r"high is torch.int32"):
        conv_quantise(**given | {"high": torch.ones(5, dtype=torch.int32)})
    with pytest.raises(ValueError, match=r"threshold has shape \(4, 1, 1\)"):
        conv_quantise(**given | {"threshold": torch.ones(4)})


@pytest.mark.parametrize("backend", BACKENDS)
def test_quotients_are_not_rounded_up(backend):
    """Just below n thresholds single precision rounds some quotients to n."""
    theta = torch.linspace(0.1, 0.9, 200, device=DEVICE)
    n = torch.arange(200, device=DEVICE) % 16 + 1
    z = torch.nextafter((n * theta.double()).float(), torch.zeros(()).to(DEVICE))
    expected = (z.double() / theta.double()).floor().long()
    assert ((z / theta).floor().long() != expected).any()
    spikes = torch.zeros(1, 1, 1, 1, 1, dtype=torch.uint8, device=DEVICE)
    weight, high = torch.zeros(200, 1, 1, 1, device=DEVICE), torch.full((200,), 16.0, device=DEVICE)
    got = conv_quantise(spikes, weight, z, theta, high, backend=backend)
    assert got.flatten().tolist() == expected.tolist()
