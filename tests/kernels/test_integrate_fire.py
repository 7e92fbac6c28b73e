"""The fast integrate-and-fire kernels equal the reference, and the reference equals arithmetic on paper."""

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import BACKENDS, DEVICE
from rheobase.kernels import empty_steps, integrate_fire, tally
from rheobase.kernels.integrate_fire import SPIKE_DTYPES

_, *FAST = BACKENDS
MAXIMUM = torch.finfo(torch.float32).max


def run(backend: str, current: Tensor, membrane: Tensor, threshold: Tensor, **options) -> tuple[Tensor, ...]:
    """Run one backend on its own membrane and poisoned outputs; return spikes and membrane."""
    membrane = membrane.to(DEVICE, copy=True)
    dtype = options.pop("dtype", torch.float32)
    poison = 255 if dtype == torch.uint8 else float("nan")
    steps = options["steps"]
    out = torch.stack([torch.full_like(membrane, poison, dtype=dtype)] * steps)
    if membrane.dim() == 4 and membrane.is_contiguous(memory_format=torch.channels_last):
        out = out.flatten(0, 1).contiguous(memory_format=torch.channels_last).unflatten(0, (steps, -1))
    spikes = integrate_fire(
        current.to(DEVICE), membrane, threshold.to(DEVICE), out=out, backend=backend, **options
    )
    assert spikes is out
    return spikes, membrane


def assert_same(backend: str, *arguments: Tensor, **options) -> None:
    expected = run("reference", *arguments, **options)
    for got, want in zip(run(backend, *arguments, **options), expected, strict=True):
        assert got.dtype == want.dtype
        assert not got.isnan().any()
        assert torch.equal(got, want)


@st.composite
def problems(draw):
    """Currents on a grid that contains the thresholds, so that ties are common."""
    steps = draw(st.integers(1, 9))
    batch = draw(st.integers(1, 4))
    shapes = [(1,), (7,), (16,), (1025,), (3, 5, 5), (5, 1, 1), (2, 17, 31), (1, 1, 3), (33, 16, 16)]
    shape = draw(st.sampled_from(shapes))
    kind = draw(st.sampled_from(["scalar", "one", "first", "last", "outer", "full"]))
    threshold_shape = {
        "scalar": (),
        "one": (1,) * len(shape),
        "first": (shape[0],) + (1,) * (len(shape) - 1),
        "last": shape[-1:],
        "outer": tuple(size if axis != 1 else 1 for axis, size in enumerate(shape)),
        "full": shape,
    }[kind]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def grid(*size: int, low: int, high: int) -> Tensor:
        return torch.randint(low, high, size, generator=generator) / 8

    constant = draw(st.booleans())
    current = grid(*(() if constant else (steps,)), batch, *shape, low=-8, high=17)
    membrane = grid(batch, *shape, low=-8, high=17)
    threshold = grid(*threshold_shape, low=1, high=17)
    threshold[torch.rand(threshold_shape, generator=generator) < 0.1] = MAXIMUM
    if len(shape) == 3 and draw(st.booleans()):
        membrane = membrane.contiguous(memory_format=torch.channels_last)
        if draw(st.booleans()):
            current = (
                current.reshape(-1, *shape).contiguous(memory_format=torch.channels_last).view(current.shape)
            )
    return current, membrane, threshold, steps


@pytest.mark.parametrize("backend", FAST)
@settings(max_examples=60, deadline=None)
@given(
    problem=problems(),
    strict=st.booleans(),
    reset=st.sampled_from(["subtract", "zero"]),
    dtype=st.sampled_from(SPIKE_DTYPES),
)
def test_equals_reference(backend, problem, strict, reset, dtype):
    *arguments, steps = problem
    assert_same(backend, *arguments, steps=steps, strict=strict, reset=reset, dtype=dtype)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_current_dtypes(backend, dtype, wide):
    torch.manual_seed(0)
    current, membrane = torch.randn(6, 3, 1500).to(dtype), torch.rand(3, 1500).to(wide)
    threshold = torch.rand(1500) + 0.1
    if dtype == torch.float64 and wide == torch.float32:
        with pytest.raises(TypeError, match=r"current is torch\.float64: expected .* or torch\.float32"):
            run(backend, current, membrane, threshold, steps=6)
    else:
        assert_same(backend, current, membrane, threshold, steps=6)


@pytest.mark.parametrize("backend", FAST)
def test_integers_of_32_bits_are_exact(backend):
    torch.manual_seed(0)
    current = torch.randint(-(2**31), 2**31 - 1, (6, 3, 1500), dtype=torch.int32)
    membrane = torch.randint(-(2**31), 2**31, (3, 1500)).double()
    assert_same(backend, current, membrane, torch.randint(1, 2**31, (1500,)).double(), steps=6)
    with pytest.raises(TypeError, match=r"current is torch\.int32: expected"):
        run(backend, current, membrane.float(), torch.rand(1500), steps=6)


@pytest.mark.parametrize("steps", [1, 7, 8, 9, 40])
@pytest.mark.parametrize("many", [1, 1 << 20])
def test_loading_steps_ahead_changes_nothing(steps, many, monkeypatch):
    module = importlib.import_module("rheobase.kernels.integrate_fire.triton")
    monkeypatch.setattr(module, "_MANY", many)
    torch.manual_seed(0)
    current, membrane = torch.randn(steps, 3, 1500), torch.rand(3, 1500)
    assert_same("triton", current, membrane, torch.rand(1500) + 0.1, steps=steps)


def assert_counts(backend: str, current: Tensor, membrane: Tensor, *arguments: Tensor, **options) -> None:
    """The spikes of each sample are counted as `tally` does, on top of what was there."""
    threshold, fan_out = (x.to(DEVICE) for x in arguments)
    current, membrane, steps = current.to(DEVICE), membrane.to(DEVICE, copy=True), options["steps"]
    out = empty_steps(membrane, steps, options.pop("dtype", torch.uint8))
    totals = torch.full((steps, len(membrane)), 3, dtype=torch.int32, device=DEVICE)
    reached = torch.full_like(totals, 5, dtype=torch.int64)
    plain, start = totals.clone(), membrane.clone()
    counts = {"totals": totals, "reached": reached, "fan_out": fan_out}
    spikes = integrate_fire(current, membrane, threshold, out=out, backend=backend, **counts, **options)
    for b, (number, hit) in enumerate(zip(totals.unbind(1), reached.unbind(1), strict=True)):
        sent_TBN = spikes[:, b : b + 1].reshape(steps, 1, -1)
        found, synapses = tally(sent_TBN, fan_out.flatten(), backend="reference")
        assert (number - 3).tolist() == found.tolist()
        assert (hit - 5).tolist() == synapses.tolist()
    again = integrate_fire(current, start, threshold, totals=plain, backend=backend, **options)
    assert torch.equal(again, spikes.float())
    assert torch.equal(start, membrane)
    assert torch.equal(plain, totals)


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(
    problem=problems(),
    dtype=st.sampled_from(SPIKE_DTYPES),
    most=st.sampled_from([1, 50, 1 << 24]),  # the sums need 32 or 64 bits
    alike=st.booleans(),
    batch_last=st.booleans(),
    seed=st.integers(0, 999),
)
def test_spikes_are_counted_where_they_are_sent(backend, problem, dtype, most, alike, batch_last, seed):
    current, membrane, threshold, steps = problem
    shape, generator = membrane.shape[1:], torch.Generator().manual_seed(seed)
    fan_out = torch.randint(0, most + 1, () if alike else shape, generator=generator).double().expand(shape)
    if batch_last:  # in memory
        membrane = membrane.movedim(0, -1).contiguous().movedim(-1, 0)
    assert_counts(backend, current, membrane, threshold, fan_out, steps=steps, dtype=dtype)


@pytest.mark.parametrize("shape", [(3, 2500), (5, 1), (2, 40, 8, 8), (7,)])
@pytest.mark.parametrize("many", [1, 1 << 20])
def test_blocks_of_any_size_count_alike(shape, many, monkeypatch):
    module = importlib.import_module("rheobase.kernels.integrate_fire.triton")
    monkeypatch.setattr(module, "_MANY", many)
    torch.manual_seed(0)
    fan_out = torch.randint(0, 1 << 30, shape[1:])
    for strict, reset in ((False, "subtract"), (True, "zero")):
        options = {"steps": 4, "strict": strict, "reset": reset}
        assert_counts("triton", torch.rand(4, *shape), torch.rand(shape), torch.rand(()), fan_out, **options)


@pytest.mark.parametrize("shape", [(2, 3, 5001), (1, 1, 8193), (40, 2, 300)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_blocks_cover_every_neuron(shape, dtype):
    torch.manual_seed(1)
    current, membrane = torch.randn(2, *shape, dtype=dtype), torch.rand(shape, dtype=dtype)
    for threshold in (torch.rand(()), torch.rand(shape[1], 1), torch.rand(shape[1:])):
        for spikes in (torch.uint8, dtype):
            assert_same(FAST[-1], current, membrane, threshold, steps=2, dtype=spikes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_closed_form_count(backend):
    """A constant current z in [0, θ] from v0 in [0, θ) fires clip(floor((T z + v0) / θ), 0, T) times.

    All values are multiples of 1/64 in float64, so every sum is exact and ties count as in the formula.
    """
    z = torch.arange(65, dtype=torch.float64).view(1, 65, 1) / 64
    start = torch.arange(64, dtype=torch.float64).view(1, 1, 64) / 64
    for steps in (1, 4, 32):
        membrane = start.expand(1, 65, 64).to(DEVICE, copy=True)
        threshold = torch.ones((), dtype=torch.float64, device=DEVICE)
        current = z.expand(1, 65, 64).to(DEVICE)
        spikes = integrate_fire(current, membrane, threshold, steps=steps, backend=backend)
        expected = (steps * z + start).floor().clamp(0, steps).to(DEVICE)
        assert torch.equal(spikes.double().sum(0), expected)
        assert torch.equal(membrane, (start + steps * z).to(DEVICE) - expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tie_fires_unless_strict(backend):
    current, membrane, threshold = torch.full((1, 1, 1), 1.0), torch.zeros(1, 1), torch.tensor(1.0)
    assert run(backend, current, membrane, threshold, steps=1)[0].item() == 1
    assert run(backend, current, membrane, threshold, steps=1, strict=True)[0].item() == 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("silent", [torch.finfo(torch.float64).max, float("inf"), MAXIMUM])
def test_silent_neurons_stay_finite(backend, silent):
    threshold = torch.tensor([silent, 1.0], dtype=torch.float64)
    for reset in ("subtract", "zero"):
        spikes, membrane = run(
            backend, torch.ones(3, 1, 2), torch.zeros(1, 2), threshold, steps=3, reset=reset
        )
        assert spikes.sum(0).tolist() == [[0, 3]]
        assert membrane.tolist() == [[3, 0]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_output_takes_the_membrane_format(backend):
    membrane = torch.zeros(2, 3, 4, 5, device=DEVICE).to(memory_format=torch.channels_last)
    threshold = torch.ones(3, 1, 1, device=DEVICE)
    spikes = integrate_fire(membrane.clone(), membrane, threshold, steps=2, backend=backend)
    assert spikes.shape == (2, 2, 3, 4, 5)
    assert spikes[0].is_contiguous(memory_format=torch.channels_last)
    assert spikes.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batch(backend):
    empty = torch.zeros(0, 3, device=DEVICE)
    assert integrate_fire(empty, empty, torch.ones((), device=DEVICE), steps=2, backend=backend).shape == (
        2,
        0,
        3,
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"steps": 0}, ValueError, "at least 1"),
        ({"reset": "soft"}, ValueError, "expected 'subtract' or 'zero'"),
        ({"current": torch.ones(3, 2, 5)}, ValueError, r"expected \(3, 2, 4\) or \(2, 4\)"),
        ({"current": torch.ones(2, 4).double()}, TypeError, "current is torch.float64"),
        ({"current": torch.ones(2, 4).int()}, TypeError, "current is torch.int32"),
        ({"membrane": torch.zeros(2, 4).half()}, TypeError, "membrane is torch.float16"),
        ({"membrane": torch.tensor(0.0)}, ValueError, "no batch dimension"),
        ({"threshold": torch.ones(2)}, ValueError, r"broadcasts to a sample's \(4,\)"),
        ({"threshold": torch.ones(2, 4)}, ValueError, r"broadcasts to a sample's \(4,\)"),
        ({"threshold": torch.ones(4).int()}, TypeError, "threshold is torch.int32"),
        ({"out": torch.ones(2, 2, 4)}, ValueError, r"out has shape \(2, 2, 4\)"),
        ({"out": torch.ones(3, 2, 4).bool()}, TypeError, "out is torch.bool"),
        ({"current": torch.ones(2, 4, device="meta")}, ValueError, "current is on meta"),
        ({"totals": torch.zeros(3, 2)}, TypeError, "totals is torch.float32"),
        ({"totals": torch.zeros(2, 3, dtype=torch.int32)}, ValueError, r"expected \(3, 2\)"),
        ({"totals": torch.zeros(2, 3, dtype=torch.int32).T}, ValueError, "contiguous"),
        ({"totals": torch.zeros(3, 2, dtype=torch.int32, device="meta")}, ValueError, "totals is on meta"),
        ({"fan_out": torch.ones(4)}, ValueError, "belong together"),
        ({"fan_out": torch.ones(4), "reached": torch.zeros(3, 2).long()}, ValueError, "without totals"),
    ],
)
def test_refusals_change_nothing(backend, change, error, message):
    arguments = {
        "current": torch.ones(2, 4),
        "membrane": torch.zeros(2, 4),
        "threshold": torch.ones(4),
        "steps": 3,
    }
    arguments |= change
    tensors = {
        name: value.to(DEVICE) if isinstance(value, Tensor) and value.device.type != "meta" else value
        for name, value in arguments.items()
    }
    with pytest.raises(error, match=message):
        integrate_fire(**tensors, backend=backend)
    assert not tensors["membrane"].any()


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize("name", ["membrane", "out"])
def test_strided_outputs_are_refused(backend, name):
    tensors = {
        "current": torch.ones(2, 4, device=DEVICE),
        "membrane": torch.zeros(2, 4, device=DEVICE),
        "threshold": torch.ones(4, device=DEVICE),
        "out": torch.zeros(3, 2, 4, device=DEVICE),
    }
    wide = torch.zeros(*tensors[name].shape[:-1], 8, device=DEVICE)
    tensors[name] = wide[..., ::2]
    with pytest.raises(ValueError, match=f"{name} has strides"):
        integrate_fire(**tensors, steps=3, backend=backend)
    assert not wide.any()
