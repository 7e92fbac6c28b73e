"""Thresholds that grow by what exceeds them, and a delayed read-out."""

import pytest
import torch
from torch import nn

from rheobase import SNN, convert, simulate
from rheobase.methods import get

X = torch.tensor([[0.0], [4.0]])


def converted(**options: object) -> SNN:
    """One neuron whose activation is its input."""
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).eval()
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    return convert(model, "ltb", X, **options)


def test_thresholds_by_hand() -> None:
    """Of the activations 0 and 4 the mean excess is 2: at rate ½ one repetition gives 2, the next 3."""
    for repetitions, theta in ((1, 2.0), (2, 3.0), (50, 4.0)):
        snn = converted(repetitions=repetitions, rate=0.5)
        assert snn.neuron(snn.sites[0]).threshold.item() == pytest.approx(theta, rel=0.03)  # a bin's width


@pytest.mark.parametrize(("steps", "delay"), [(32, 1), (4, 0), (5, 1)])
def test_outputs_count_after_spikes_have_crossed_the_network(steps: int, delay: int) -> None:
    """(θ − v(0))/mean a = 2/2 steps for the only layer, but the last four steps always count."""
    assert converted(steps=steps).delay == delay


@pytest.mark.parametrize(("initial", "delay"), [("zero", 2), ("half", 1), (0.9, 0)])
def test_a_lower_start_takes_longer_to_cross(initial: str | float, delay: int) -> None:
    assert converted(initial=initial).delay == delay


def test_a_rehearsal_comes_before_the_steps_that_do_not_count() -> None:
    assert [converted(then=[name]).delay for name in ("srp", "cos")] == [5, 5]


def test_small_members_fire_early() -> None:
    delays = [converted(initial=0.0, then=[get("gn", members=m)]).delay for m in (2, 8)]
    assert [converted(initial=0.0).delay, *delays] == [2, 1, 0]


def test_a_silent_site_takes_no_time() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    nn.init.constant_(model[2].weight, -1.0)
    nn.init.constant_(model[2].bias, -1.0)
    with pytest.warns(UserWarning, match=r"'3'.*100"):
        assert convert(model, "ltb", X).delay == 1


@pytest.mark.parametrize("name", ["parallel", "pascal"])
def test_all_outputs_count_where_layers_wait(name: str) -> None:
    snn = converted(then=[name])
    assert (snn.delay, snn.window) == (0, 4)
    assert simulate(snn, X, 4).at == (4,)
