"""Counts that follow sums of currents: the compiled kernel equals the definition."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from conftest import BACKENDS, DEVICE, channels_last
from rheobase.kernels import Rounding, encode
from rheobase.kernels.encode.rounding import COMPILED

FUNCTIONS = {
    "linear": lambda z: z,
    "relu": lambda z, bound=None: torch.relu(z) if bound is None else torch.relu(z).minimum(bound),
    "gelu": F.gelu,
}
COMPARED = [backend for backend in BACKENDS if backend != "cpu"]


@settings(max_examples=30, deadline=None)
@given(
    T=st.integers(1, 3),
    B=st.integers(1, 2),
    shape=st.sampled_from([(5,), (3, 700), (4, 3, 6), (2, 3, 4, 5), (2, 1, 3, 2, 2)]),
    order=st.sampled_from(["plain", "turned", "still", "last"]),
    quantum=st.sampled_from(["one", "first", "last"]),
    name=st.sampled_from(sorted(COMPILED)),
    bounded=st.booleans(),
    sizes=st.sampled_from([None, 1, 4]),
    integers=st.booleans(),
    uniform=st.booleans(),
    seed=st.integers(0, 999),
)
def test_equals_the_definition(T, B, shape, order, quantum, name, bounded, sizes, integers, uniform, seed):
    seed = torch.Generator().manual_seed(seed)
    signed = name != "relu"

    def along(kind: str) -> torch.Tensor:
        extents = {"one": (), "first": (shape[0], *[1] * (len(shape) - 1)), "last": (shape[-1],)}[kind]
        return 0.1 + torch.rand(extents, generator=seed)

    current = 20 * torch.randn(T, B, *shape, generator=seed)
    if integers:
        current = current.round().to(torch.int32)
    if order == "turned":
        current = current.transpose(2, -1).contiguous().transpose(2, -1)
    elif order == "last" and len(shape) == 3:
        current = channels_last(current)
    elif order == "still":
        current = current[:1].expand(T, -1, *[-1] * len(shape))
    count = torch.randint(-4 if signed else 0, 5, (B, *shape), generator=seed).float()
    if order == "last" and len(shape) == 3:
        count = channels_last(count)
    scale, bias = (along("last") - 0.5, along("last")) if integers else (None, None)
    bound = 4 * along(quantum) if bounded and COMPILED[name] else None
    given = [None if x is None else x.to(DEVICE) for x in (along(quantum), bound, scale, bias)]
    rounding = Rounding(
        given[0], 0.5, -15 if signed else 0, 15, name, FUNCTIONS[name], name != "gelu", *given[1:]
    )
    fan_out = torch.randint(0, 700, shape, generator=seed).to(DEVICE)
    if uniform:
        fan_out = fan_out.flatten()[0].expand(shape)
    found = []
    for backend in COMPARED:
        state = count.to(DEVICE, copy=True)
        out = torch.zeros(T, B, *shape, dtype=torch.int8, device=DEVICE)
        events, reached = encode(
            current.to(DEVICE), state, rounding, sizes=sizes, out=out, fan_out=fan_out, backend=backend
        )
        found.append((events, reached, state, out))
    for others in found[1:]:
        for ours, theirs in zip(found[0], others, strict=True):
            assert torch.equal(ours, theirs)


def test_it_is_the_rounding_of_the_formula():
    current = torch.tensor([[[0.24, 0.26, -9.0, 9.0]]], device=DEVICE)
    out = torch.empty_like(current)
    rounding = Rounding(
        torch.tensor(0.5, device=DEVICE), 0.5, -4, 4, "linear", FUNCTIONS["linear"], exact=True
    )
    for backend in COMPARED:
        state = torch.zeros_like(current[0])
        events, _ = encode(current, state, rounding, out=out, backend=backend)
        assert out.tolist() == [[[0, 1, -4, 4]]]
        assert events.tolist() == [[3]]


@pytest.mark.parametrize("start", [0.5, 0.3, 0.0])
@pytest.mark.parametrize("unit", [0.037, 0.5])
def test_gelu_is_rounded_as_in_double_precision_at_every_boundary(start: float, unit: float) -> None:
    """Single precision, which is tried first, is wrong at many of these values."""
    unit_32 = torch.tensor(unit)
    edges = (torch.arange(1, 64) - start).double() * unit_32.double()
    low, high = torch.zeros_like(edges), edges + 2
    for _ in range(80):  # gelu rises there
        middle = (low + high) / 2
        below = F.gelu(middle) < edges
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    near = [low.float()]
    for _ in range(3):
        near += [torch.nextafter(near[-1], torch.tensor(torch.inf))]
    near += [2 * near[0] - x for x in near[1:]]
    current = torch.cat(near)[None, None].to(DEVICE)
    rounding = Rounding(unit_32.to(DEVICE), start, -64, 64, "gelu", F.gelu, exact=False)
    found = []
    for backend in COMPARED:
        found.append(torch.empty_like(current))
        encode(current, torch.zeros_like(current[0]), rounding, out=found[-1], backend=backend)
    assert len(found[0].unique()) > 60
    for others in found[1:]:
        assert torch.equal(found[0], others)


def test_what_does_not_fit_is_refused():
    zeros = torch.zeros(1, 2, 3, device=DEVICE)
    rounding = Rounding(torch.tensor(1.0, device=DEVICE), 0.5, 0, 4, "relu", FUNCTIONS["relu"], exact=True)
    for wrong in ({"out": zeros[..., :2]}, {"fan_out": torch.ones(2, device=DEVICE)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            encode(zeros, zeros[0], rounding, **{"out": zeros} | wrong)
    unknown = Rounding(torch.tensor(1.0, device=DEVICE), 0.5, 0, 4, "silu", F.silu, exact=False)
    for backend in ("auto", "reference"):
        encode(zeros, zeros[0].clone(), unknown, out=zeros.clone(), backend=backend)
    with pytest.raises(ValueError, match="silu"):
        encode(zeros, zeros[0].clone(), unknown, out=zeros.clone(), backend="triton")
