"""The closed form of a neuron under a constant current, and its bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rheobase.analysis.diagnosis.closed_form import bound_spikes, count_spikes, even_output
from rheobase.network import Group
from rheobase.network.neurons import Coefficients, FewSpikes, IntegrateFire


def neuron(theta: float, reset: str = "subtract", strict: bool = False) -> IntegrateFire:
    one = torch.ones((), dtype=torch.float64)
    return IntegrateFire(one * theta, one, reset=reset, strict=strict)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(
    z=st.integers(-20, 30),
    v0=st.integers(-40, 60),
    T=st.integers(1, 40),
    reset=st.sampled_from(["subtract", "zero"]),
    strict=st.booleans(),
)
def test_the_closed_form_is_the_neuron(z: int, v0: int, T: int, reset: str, strict: bool) -> None:
    """From every start, also below zero and above the threshold."""
    one = neuron(8.0, reset, strict)
    current, start = (torch.full((1, 1), float(v), dtype=torch.float64) for v in (z, v0))
    spikes = one.advance(current, start.clone(), T)
    assert count_spikes(one, current, start, T).item() == spikes.sum().item()


def test_the_closed_form_of_the_paper() -> None:
    z = torch.linspace(-1, 3, 401, dtype=torch.float64)[None]
    start = torch.full_like(z, 0.7)
    for T in (1, 3, 16):
        expected = ((T * z + 0.7) / 2).floor().clamp(0, T)
        assert torch.equal(count_spikes(neuron(2.0), z, start, T), expected)


@settings(max_examples=200, deadline=None)
@given(
    currents=st.lists(st.integers(-12, 20), min_size=1, max_size=20),
    v0=st.integers(-10, 20),
    strict=st.booleans(),
)
def test_unevenness_bounds_the_spikes(currents: list[int], v0: int, strict: bool) -> None:
    one, T = neuron(8.0, strict=strict), len(currents)
    current_TB = torch.tensor(currents, dtype=torch.float64).view(T, 1, 1)
    start = torch.full((1, 1), float(v0), dtype=torch.float64)
    count = one.advance(current_TB.clone(), start.clone(), T).sum(0)
    sums, z = current_TB.cumsum(0), current_TB.mean(0)
    unevenness = (sums - torch.arange(1, T + 1).view(-1, 1, 1) * z).abs().amax(0)
    low, high = bound_spikes(one, z, start, T, unevenness + 1e-9)
    assert low <= count <= high


def test_other_neurons_are_run() -> None:
    few = FewSpikes(torch.tensor(2.0), Coefficients.binary(4))
    z = torch.linspace(-1, 3, 33)[None]
    start = torch.zeros_like(z)
    assert torch.equal(even_output(few, z, start, 4), few.advance(z, start.clone(), 4).double().mean(0))


@pytest.mark.parametrize("kind", ["closed form", "run"])
def test_the_first_steps_may_not_count(kind: str) -> None:
    theta = torch.tensor(2.0)
    one = IntegrateFire(theta) if kind == "closed form" else Group.of(IntegrateFire(theta))
    z = torch.linspace(-1, 3, 33).double()[None]
    start = torch.full_like(z, 1.0)
    expected = one.advance(z.expand(7, *z.shape).clone(), start.clone(), 7)[3:].double().mean(0)
    assert torch.equal(even_output(one, z, start, 7, delay=3), expected)
