"""The fused convolution equals its definition, spike for spike.

Weights, biases, thresholds and potentials are small multiples of 1/64, so that every order of summation is
exact.
"""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import DEVICE, channels_last
from rheobase.kernels import collect_routines, conv_integrate_fire, linear_integrate_fire
from rheobase.kernels.conv_integrate_fire import triton as triton_kernel
from rheobase.kernels.conv_integrate_fire.dense import spread_weight
from rheobase.kernels.conv_integrate_fire.packing import count_wide, pack
from rheobase.kernels.conv_integrate_fire.tiles import Tile, cut_pixels, rank_tiles, standard_batch
from rheobase.kernels.launching import launch, only_compile

HALVES = (torch.bfloat16, torch.float16)


def make_numbers(*size: int, low: int, high: int, integer: bool, seed: torch.Generator) -> Tensor:
    values = torch.randint(low, high, size, generator=seed)
    return values.to(torch.int32) if integer else values / 64


@st.composite
def problems(draw):
    """Arguments of `conv_integrate_fire`, of odd sizes that leave blocks and images partly empty."""
    size, channels = st.integers(1, 6), st.sampled_from([1, 3, 16, 20])
    T, B, H, W = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(size), draw(size)
    C, N = draw(channels), draw(st.sampled_from([1, 5, 16, 33]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (3, 3), (1, 3)]))
    stride = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    padding = tuple(
        draw(st.integers(max(0, -(-(k - n) // 2)), 2)) for k, n in zip(kernel, (H, W), strict=True)
    )
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.int8]))
    integer = dtype == torch.int8
    half = [torch.float16] if dtype == torch.float32 else []
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    Y, X = ((n + 2 * p - k) // s + 1 for n, p, k, s in zip((H, W), padding, kernel, stride, strict=True))

    def numbers(*size: int, low: int = -20, high: int = 21) -> Tensor:
        return make_numbers(*size, low=low, high=high, integer=integer, seed=seed)

    spikes = torch.randint(0, draw(st.sampled_from([2, 5])), (T, B, C, H, W), generator=seed).to(torch.uint8)
    problem = {
        "spikes": spikes.to(draw(st.sampled_from([torch.uint8] if integer else [torch.uint8, dtype, *half]))),
        "weight": numbers(N, C, *kernel, low=-8, high=9).to(dtype),
        "bias": draw(st.sampled_from([None, numbers(N)])),
        "membrane": numbers(B, N, Y, X),
        "threshold": numbers(*draw(st.sampled_from([(), (N, 1, 1)])), low=1, high=40),
        "stride": stride,
        "padding": padding,
        "strict": draw(st.booleans()),
        "reset": draw(st.sampled_from(["subtract", "zero"])),
    }
    if draw(st.booleans()):
        shape = draw(st.sampled_from([(T, B, N, Y, X), (B, N, Y, X)]))
        spiking = torch.randint(0, 2, shape, generator=seed).to(torch.uint8)
        problem["residual"] = draw(st.sampled_from([spiking, numbers(*shape)]))
        problem["residual_scale"] = draw(st.sampled_from([None, numbers(N, low=-5, high=6)]))
    behind = torch.randint(0, 50, draw(st.sampled_from([(1, Y, X), (N, Y, X)])), generator=seed)
    behind = behind * draw(st.sampled_from([1, 1 << 24]))  # the sums need 32 or 64 bits
    problem["fan_out"] = channels_last(behind.expand(N, Y, X).double()) if draw(st.booleans()) else None
    wide = draw(st.integers(0, C))
    narrow = problem["weight"][:, wide:]
    middle = narrow[..., kernel[0] // 2, kernel[1] // 2].clone()
    if draw(st.booleans()):  # the other channels are seen by the middle tap alone
        narrow.zero_()[..., kernel[0] // 2, kernel[1] // 2] = middle
    if draw(st.booleans()):
        problem |= {name: channels_last(problem[name]) for name in ("spikes", "membrane")}
    return problem


def run(problem: dict, backend: str, dtype: torch.dtype = torch.uint8, tile: Tile | None = None):
    """Run one backend on its own state and a poisoned output; return what it wrote."""
    own = {k: v.to(DEVICE, copy=True) if isinstance(v, Tensor) else v for k, v in problem.items()}
    T, B = own["spikes"].shape[:2]
    poison = 255 if dtype == torch.uint8 else float("nan")
    out = torch.full((T, *own["membrane"].shape), poison, dtype=dtype, device=DEVICE)
    if own["membrane"].movedim(1, -1).is_contiguous():
        out = channels_last(out)
    totals = torch.full((T, B), 7, dtype=torch.int32, device=DEVICE)
    counts = {"totals": totals}
    if own.get("fan_out") is not None:
        counts["reached"] = torch.full((T, B), 1 << 40, device=DEVICE)
    spikes = conv_integrate_fire(**own, **counts, out=out, backend=backend, tile=tile)
    assert spikes is out
    if "reached" in counts:
        wanted = (spikes.double() * own["fan_out"]).flatten(2).sum(2).long()
        assert torch.equal(counts["reached"] - (1 << 40), wanted)
    return spikes, own["membrane"], totals


def make_tile(problem: dict, **changes) -> Tile:
    """Return a tile small enough that several are needed and quick to interpret."""
    return replace(Tile(16, 16, 32 if problem["weight"].dtype == torch.int8 else 16, 4, 2), **changes)


@settings(max_examples=30, deadline=None)
@given(
    problem=problems(),
    dtype=st.sampled_from([torch.uint8, *HALVES, torch.float32]),
    pixels=st.sampled_from([16, 32]),
    one_loop=st.booleans(),
)
def test_equals_reference(problem, dtype, pixels, one_loop):
    tile = make_tile(problem, pixels=pixels, one_loop=one_loop)
    for got, want in zip(run(problem, "triton", dtype, tile), run(problem, "reference", dtype), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_linear_closed_form(backend, dtype):
    """A neuron driven by z every step from v0 fires clip(floor((T z + v0) / θ), 0, T) times."""
    steps, unit = 8, 64
    integer = dtype == torch.int8
    state = torch.int32 if integer else torch.float32
    scale = 1 if integer else unit
    z = torch.arange(0, unit + 1, 4)
    start = torch.arange(0, unit, 7)
    spikes = torch.ones(steps, len(start), 1, dtype=torch.uint8, device=DEVICE)
    weight = (z[:, None] / scale).to(dtype).to(DEVICE)
    membrane = (start[:, None].expand(-1, len(z)) / scale).to(state).to(DEVICE)
    threshold = torch.tensor(unit / scale, device=DEVICE).to(state)
    fired = linear_integrate_fire(spikes, weight, None, membrane, threshold, backend=backend)
    expected = ((steps * z + start[:, None]) // unit).clamp(0, steps)
    assert torch.equal(fired.sum(0).cpu(), expected)
    assert torch.equal(membrane.cpu() * scale, (steps * z + start[:, None] - unit * expected).to(state))


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_linear_equals_a_plain_loop(backend):
    seed = torch.Generator().manual_seed(1)
    spikes = torch.randint(0, 2, (3, 5, 21), generator=seed).to(torch.uint8)
    weight = make_numbers(18, 21, low=-8, high=9, integer=False, seed=seed)
    threshold = make_numbers(18, low=5, high=30, integer=False, seed=seed)
    residual = torch.randint(0, 2, (3, 5, 18), generator=seed).to(torch.uint8)
    scale = make_numbers(18, low=-5, high=6, integer=False, seed=seed)
    potential, want = torch.zeros(5, 18), []
    for t in range(3):
        potential = potential + F.linear(spikes[t].float(), weight) + residual[t] * scale
        want.append(potential >= threshold)
        potential = potential - threshold * want[-1]
    moved = [x.to(DEVICE) for x in (spikes, weight, torch.zeros(5, 18), threshold, residual, scale)]
    spikes, weight, membrane, threshold, residual, scale = moved
    out = torch.full((3, 5, 18), 255, dtype=torch.uint8, device=DEVICE)
    options = {"residual": residual, "residual_scale": scale, "out": out, "backend": backend}
    assert linear_integrate_fire(spikes, weight, None, membrane, threshold, **options) is out
    assert torch.equal(out.bool().cpu(), torch.stack(want))
    assert torch.equal(membrane.cpu(), potential)


@pytest.mark.parametrize(
    "backend", ["reference", "triton"] if DEVICE == "cuda" else ["reference", "triton", "cpu"]
)
@pytest.mark.parametrize("silent", [torch.finfo(torch.float32).max, float("inf")])
def test_silent_neurons_stay_finite(backend, silent):
    problem = {
        "spikes": torch.ones(3, 1, 1, 1, 1, dtype=torch.uint8),
        "weight": torch.ones(2, 1, 1, 1),
        "bias": None,
        "membrane": torch.zeros(1, 2, 1, 1),
        "threshold": torch.tensor([silent, 1.0])[:, None, None],
    }
    spikes, membrane, totals = run(problem, backend)
    assert spikes.flatten(1).sum(0).tolist() == [0, 3]
    assert membrane.flatten().tolist() == [3, 0]
    assert totals.flatten().tolist() == [8, 8, 8]


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_spread_weight_is_the_convolution(data):
    size = st.integers(1, 4)
    H, W, C, N = (data.draw(size) for _ in range(4))
    stride, padding = (data.draw(st.integers(1, 2)), 1), (1, data.draw(st.integers(1, 2)))
    weight = torch.randint(-9, 9, (N, C, 3, 3)).float()
    image = torch.randint(0, 3, (2, C, H, W)).float()
    want = F.conv2d(image, weight, stride=stride, padding=padding)
    got = image.movedim(1, -1).flatten(1) @ spread_weight(weight, H, W, stride, padding).flatten(1).T
    assert torch.equal(got.view(2, *want.shape[2:], N).movedim(-1, 1), want)


@given(st.integers(4, 8).map(lambda bits: 1 << bits), st.integers(1, 60), st.integers(1, 60))
def test_cut_pixels_fills_the_tile(pixels, Y, X):
    block = cut_pixels(pixels, Y, X)
    assert block[0] * block[1] * block[2] == pixels
    assert all(side & (side - 1) == 0 for side in block)
    assert Y % block[1] == X % block[2] == 0


@pytest.mark.parametrize("weight", [torch.float16, torch.float32, torch.int8])
@pytest.mark.parametrize(("C", "N", "Y"), [(16, 16, 32), (64, 64, 32), (128, 256, 16), (512, 512, 4)])
def test_batch_sizes_share_kernels(weight, C, N, Y):
    """All batch sizes take one of two tiles: a network is not compiled again for every size."""
    tiles = {rank_tiles(weight, C, N, standard_batch(B) * Y * Y, processors=132)[0] for B in range(1, 513)}
    assert len(tiles) <= 2


def test_inside_of_only_compile_no_kernel_runs():
    asked = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *arguments, **options: asked.append(("run", grid, arguments, options))

        def warmup(self, *arguments, grid, **options):
            asked.append(("compile", grid, arguments, options))

    with only_compile():
        launch(Kernel(), (3,), 1, SIZE=2)
    launch(Kernel(), (3,), 1, SIZE=2)
    assert asked == [("compile", (3,), (1,), {"SIZE": 2}), ("run", (3,), (1,), {"SIZE": 2})]


def test_triton_needs_one_threshold_per_channel():
    spikes = torch.ones(2, 1, 4, 3, 3, dtype=torch.uint8, device=DEVICE)
    membrane, weight = torch.zeros(1, 2, 3, 3, device=DEVICE), torch.ones(2, 4, 1, 1, device=DEVICE)
    threshold = torch.full((2, 3, 3), 6.0, device=DEVICE)
    fired = conv_integrate_fire(spikes, weight, None, membrane, threshold, backend="reference")
    assert fired.flatten(1).sum(1).tolist() == [0, 18]
    with pytest.raises(ValueError, match=r"\(2, 3, 3\).*reference"):
        conv_integrate_fire(spikes, weight, None, membrane, threshold, backend="triton")


@pytest.mark.parametrize(
    ("backend", "routine"), [("reference", "reference convolution and scan"), ("triton", "triton fused")]
)
def test_the_routine_is_reported(backend, routine):
    spikes = torch.ones(2, 1, 4, 3, 3, dtype=torch.uint8, device=DEVICE)
    membrane, weight = torch.zeros(1, 2, 3, 3, device=DEVICE), torch.ones(2, 4, 1, 1, device=DEVICE)
    with collect_routines() as names:
        for _ in range(2):
            conv_integrate_fire(spikes, weight, None, membrane, membrane.new_ones(()), backend=backend)
    assert names == [routine]


@pytest.mark.parametrize("backend", ["reference", "triton"])
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"reset": "soft"}, ValueError, "unknown reset"),
        ({"spikes": torch.ones(2, 3, 4, 4)}, ValueError, r"expected \(T, B, C, H, W\)"),
        ({"spikes": torch.ones(2, 1, 3, 4, 4, dtype=torch.int32)}, TypeError, "spikes is torch.int32"),
        ({"spikes": torch.ones(2, 1, 3, 4, 4).bfloat16()}, TypeError, "spikes is torch.bfloat16"),
        ({"weight": torch.ones(5, 2, 3, 3)}, ValueError, "weight has shape"),
        ({"weight": torch.ones(5, 3, 3, 3).double()}, TypeError, "weight is torch.float64"),
        ({"weight": torch.ones(5, 3, 7, 7)}, ValueError, "smaller than the 7 × 7 kernel"),
        ({"membrane": torch.zeros(1, 5, 4, 4)}, ValueError, r"expected \(1, 5, 2, 2\)"),
        ({"membrane": torch.zeros(1, 5, 2, 2).double()}, TypeError, "membrane is torch.float64"),
        ({"bias": torch.ones(4)}, ValueError, r"bias has shape \(4,\)"),
        ({"threshold": torch.ones(4, 1, 1)}, ValueError, "broadcasts to a sample's"),
        ({"threshold": torch.ones(5, 1, 1, dtype=torch.int32)}, TypeError, "threshold is torch.int32"),
        ({"residual": torch.ones(1, 5, 4, 4)}, ValueError, "residual has shape"),
        ({"residual_scale": torch.ones(5)}, ValueError, "without a residual"),
        ({"out": torch.ones(1, 1, 5, 2, 2)}, ValueError, "out has shape"),
        ({"totals": torch.ones(2, dtype=torch.int32)}, ValueError, "totals has shape"),
        ({"totals": torch.ones(2, 1)}, TypeError, "totals is torch.float32"),
        ({"bias": torch.ones(5, device="meta")}, ValueError, "bias is on meta"),
    ],
)
def test_refusals_change_nothing(backend, change, error, message):
    arguments = {
        "spikes": torch.ones(2, 1, 3, 4, 4, dtype=torch.uint8),
        "weight": torch.ones(5, 3, 3, 3),
        "bias": None,
        "membrane": torch.zeros(1, 5, 2, 2),
        "threshold": torch.ones(5, 1, 1),
    } | change
    tensors = {
        name: value.to(DEVICE) if isinstance(value, Tensor) and value.device.type != "meta" else value
        for name, value in arguments.items()
    }
    with pytest.raises(error, match=message):
        conv_integrate_fire(**tensors, backend=backend)
    assert not tensors["membrane"].any()


@pytest.mark.parametrize("kernel", [1, 3])
def test_both_halves_of_a_weight_count(kernel):
    """Weights of fifteen bits, of which one half holds eleven: spikes are right only with both."""
    seed = torch.Generator().manual_seed(kernel)
    weight = make_numbers(20, 24, kernel, kernel, low=-(2**14), high=2**14, integer=False, seed=seed)
    problem = {
        "spikes": torch.randint(0, 2, (4, 2, 24, 4, 8), generator=seed).to(torch.uint8),
        "weight": weight,
        "bias": make_numbers(20, low=-99, high=99, integer=False, seed=seed),
        "membrane": make_numbers(2, 20, 4, 8, low=-(2**14), high=2**14, integer=False, seed=seed),
        "threshold": make_numbers(20, 1, 1, low=2**10, high=2**14, integer=False, seed=seed),
        "padding": kernel // 2,
    }
    _, low = pack(weight)[0].chunk(2)
    assert low.any()
    for got, want in zip(
        run(problem, "triton", tile=make_tile(problem, pixels=32)), run(problem, "reference"), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int8])
def test_groups_of_pixels_give_the_same_spikes(stride, kernel, dtype):
    """Few channels and a width that groups fit into: the kernel runs on groups of pixels."""
    seed = torch.Generator().manual_seed(kernel)
    integer = dtype == torch.int8
    size = 8 // stride
    maps = {
        "spikes": torch.randint(0, 2, (3, 2, 16, 8, 8), generator=seed).to(torch.uint8),
        "membrane": make_numbers(2, 16, size, size, low=-20, high=21, integer=integer, seed=seed),
        "residual": torch.randint(0, 2, (3, 2, 16, size, size), generator=seed).to(torch.uint8),
    }
    problem = {
        **{name: channels_last(values) for name, values in maps.items()},
        "weight": make_numbers(16, 16, kernel, kernel, low=-8, high=9, integer=integer, seed=seed).to(dtype),
        "bias": make_numbers(16, low=-5, high=6, integer=integer, seed=seed),
        "threshold": make_numbers(16, 1, 1, low=10, high=30, integer=integer, seed=seed),
        "residual_scale": make_numbers(16, low=1, high=9, integer=integer, seed=seed),
        "stride": stride,
        "padding": kernel // 2,
    }
    grouped = []
    original = triton_kernel.widen
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_kernel, "widen", lambda p: grouped.append(original(p)) or grouped[-1])
        results = [
            run(problem, backend, tile=make_tile(problem, pixels=32)) for backend in ("triton", "reference")
        ]
    assert grouped[0].spikes.shape[2] == 64
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("one_loop", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8])
def test_channels_that_the_middle_tap_alone_sees_have_no_others(dtype, one_loop, monkeypatch):
    """As a shortcut beside a layer's own input; products with the weights of other taps are left out."""
    seed = torch.Generator().manual_seed(0)
    integer = dtype == torch.int8
    full = make_numbers(16, 80, 3, 3, low=-8, high=9, integer=integer, seed=seed).to(dtype)
    weight = full.clone()
    weight[:, 32:] = F.pad(full[:, 32:, 1:2, 1:2], (1, 1, 1, 1))
    assert (count_wide(full), count_wide(weight)) == (80, 32)
    problem = {
        "spikes": channels_last(torch.randint(0, 2, (2, 2, 80, 4, 8), generator=seed).to(torch.uint8)),
        "weight": weight,
        "bias": make_numbers(16, low=-5, high=6, integer=integer, seed=seed),
        "membrane": channels_last(make_numbers(2, 16, 4, 8, low=-20, high=21, integer=integer, seed=seed)),
        "threshold": make_numbers(16, 1, 1, low=10, high=30, integer=integer, seed=seed),
        "padding": 1,
    }
    tile, expected = make_tile(problem, one_loop=one_loop), run(problem, "reference")
    for got, want in zip(run(problem, "triton", tile=tile), expected, strict=True):
        assert torch.equal(got, want)
    monkeypatch.setattr(triton_kernel, "count_wide", lambda weight: 32)
    for got, want in zip(run(problem | {"weight": full}, "triton", tile=tile), expected, strict=True):
        assert torch.equal(got, want)  # for the others are never looked at
