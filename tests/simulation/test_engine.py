"""The engine: folded time equals a loop over the steps."""

import re

import pytest
import torch
from torch import Tensor, nn

from families import build, converted, inputs
from rheobase import HALF, Margin, convert, evaluate, simulate
from rheobase.simulation import Simulator


@pytest.mark.parametrize("profile", ["exact", "fast", "int8"])
@pytest.mark.parametrize("delay", [0, 3])
def test_what_is_read_out_does_not_depend_on_what_else_is(profile: str, delay: int) -> None:
    snn, x = converted("SharedReLU"), inputs(3)
    every = Simulator(snn, x, 12, delay=delay, chunk=5, profile=profile).run(x).logits
    for at in ([12], [4, 11], [6, 7, 8, 9, 10]):
        some = Simulator(snn, x, 12, at=at, delay=delay, chunk=2, profile=profile).run(x).logits
        torch.testing.assert_close(some, every[[t - delay - 1 for t in at]])


@pytest.mark.parametrize("at", [[32], [2, 20, 32], [1]])
def test_reading_out_late_when_everybody_has_left(at: list[int]) -> None:
    x = inputs(4)
    snn = convert(build("Plain"), "max-norm", inputs(16, seed=5), initial=HALF)
    every = simulate(snn, x, 32, exit_rule=Margin(0.0))
    some = simulate(snn, x, 32, at=at, exit_rule=Margin(0.0))
    assert (some.left < 32).all()
    assert torch.equal(some.logits, every.logits[[t - 1 for t in at]])


class Beside(nn.Module):
    """The read-out reads a current beside the spikes that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        current = self.second(self.first(x).relu())
        return self.last(torch.cat([current.relu(), current], 1))


def test_spikes_are_not_written_over_what_the_read_out_needs() -> None:
    torch.manual_seed(0)
    model, x = Beside().double().eval(), torch.randn(16, 6, dtype=torch.float64)
    snn = convert(model, "max-norm", x, initial="half")
    assert (simulate(snn, x, 1024, at=[1024]).logits[0] - model(x)).abs().max() < 0.01


def test_a_site_of_one_neuron_without_dimensions_is_counted() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 1), nn.Linear(1, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).squeeze(1).relu().unsqueeze(1))

    torch.manual_seed(0)
    x = torch.randn(16, 6)
    snn = convert(Single().eval(), "max-norm", x, initial="half")
    (spikes,) = simulate(snn, x, 8).spikes.values()
    assert 0 < spikes.sum() <= 16 * 8


def test_pooled_units_are_counted_before_their_room_is_used_again() -> None:
    """Who has left is known at the end of a chunk: until then nothing may be written over what will count."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Hardtanh(0.0, 1.0),  # spikes are worth 1 as they are: nothing lies between pooling and neuron
        nn.AvgPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 5),
    )
    snn, data = convert(model, "max-norm", inputs(16)), (inputs(4), torch.zeros(4, dtype=torch.int64))
    never, plain = (
        evaluate(snn, data, 12, pooled_units=True, exit_rule=rule, progress=False)
        for rule in (Margin(float("inf")), None)
    )
    assert never.sop == plain.sop


@pytest.mark.parametrize(
    ("profile", "first", "others"),
    [("exact", "scan", "scan"), ("fast", "scan", "oneDNN|torch"), ("int8", "scan", "oneDNN|torch")],
)
def test_a_run_names_the_routine_of_each_site(profile: str, first: str, others: str) -> None:
    x = inputs(3)
    snn = convert(build("Plain"), "max-norm", inputs(16))
    kernels = simulate(snn, x, 4, profile=profile).kernels
    assert list(kernels) == snn.sites
    assert re.search(first, kernels[snn.sites[0]])
    assert all(re.search(others, kernels[site]) for site in snn.sites[1:])
    read = Simulator(snn, x, 4, read=snn.sites[0]).run(x)
    assert list(read.kernels) == snn.sites[:1]
    few = convert(build("Plain"), "few-spikes", inputs(16), steps=4)
    assert set(simulate(few, x, 4).kernels.values()) == {"torch"}
