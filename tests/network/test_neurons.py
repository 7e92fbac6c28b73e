"""Neurons: thresholds, dead ones, and the rate that many steps approach."""

import pytest
import torch
from torch import Tensor

from rheobase import HALF
from rheobase.network.groups import Group
from rheobase.network.neurons import Coefficients, FewSpikes, IntegrateFire, Neuron, Switch, mean_over_steps
from rheobase.network.rehearsals import Waiting
from rheobase.network.sigma_delta import SigmaDelta

STEPS = 256
NEURONS: dict[str, Neuron] = {
    "subtract": IntegrateFire(torch.tensor(2.0), initial=HALF),
    "per channel": IntegrateFire(torch.tensor([1.0, 2.0, 0.5])),
    "reset to zero": IntegrateFire(torch.tensor(2.0), reset="zero"),
    "few spikes": FewSpikes(torch.tensor(2.0), Coefficients.binary(8)),
    "switch": Switch(torch.tensor(2.0), STEPS),
    "waiting": Waiting(torch.tensor(2.0), window=STEPS),
    "group": Group(torch.tensor(1.0), sizes=torch.full((4,), 0.5), returns=(0.5,)),
}


def run(neuron: Neuron, z: Tensor) -> Tensor:
    steps = neuron.window or STEPS
    membrane = neuron.start(z.shape, 0, 0)
    return neuron.advance(z, membrane, steps)


@pytest.mark.parametrize("name", NEURONS)
def test_the_mean_output_approaches_forward(name: str) -> None:
    neuron, z = NEURONS[name], torch.linspace(-1, 3, 33)[:, None].repeat(1, 3)
    mean = mean_over_steps(run(neuron, z))
    assert (mean - neuron(z)).abs().max() < 0.02 * neuron.threshold.max()


@pytest.mark.parametrize("name", NEURONS)
def test_the_current_of_each_step_or_one_for_all(name: str) -> None:
    neuron, z = NEURONS[name], torch.rand(4, 3) * 2
    steps = neuron.window or STEPS
    each = neuron.advance(z.expand(steps, 4, 3).contiguous(), neuron.start(z.shape, 0, 0), steps)
    assert torch.equal(each, run(neuron, z))


@pytest.mark.parametrize("name", NEURONS)
def test_spikes_are_written_where_asked(name: str) -> None:
    neuron, z = NEURONS[name], torch.rand(4, 3) * 2
    steps = neuron.window or STEPS
    out = torch.zeros(steps, 4, 3)
    spikes = neuron.advance(z, neuron.start(z.shape, 0, 0), steps, out)
    assert torch.equal(spikes, run(neuron, z))
    assert spikes.count_nonzero() == out.count_nonzero() > 0


def test_a_neuron_tells_its_threshold_or_how_many_it_has() -> None:
    for threshold, told in ((torch.tensor(2.0), "=2,"), (torch.rand(3), "=3 values,")):
        for neuron in (Switch(threshold, 4), IntegrateFire(threshold), Group(threshold, sizes=torch.ones(1))):
            assert f"threshold{told}" in str(neuron)
        assert f"range{told}" in str(FewSpikes(threshold, Coefficients.binary(2)))
        assert f"quantum{told}" in str(SigmaDelta(threshold, 4))


def test_at_the_threshold() -> None:
    z = torch.ones(1, 1)
    for strict in (False, True):
        spikes = run(IntegrateFire(torch.tensor(1.0), strict=strict), z)
        assert spikes[0].item() == (not strict)
    assert Switch(torch.tensor(1.0), 4).strict is None


def test_what_is_not_above_zero_never_fires() -> None:
    neuron = IntegrateFire(torch.tensor([1.0, 0.0, -1.0]), initial=HALF)
    assert neuron.dead.tolist() == [False, True, True]
    assert neuron.double().dead.tolist() == [False, True, True]
    z = torch.full((2, 3), 5.0, dtype=torch.float64)
    assert run(neuron, z).flatten(0, 1).sum(0).tolist() == [2 * STEPS, 0, 0]
    assert neuron.start(z.shape, 0, 0)[0].tolist() == [0.5, 0, 0]
    with pytest.raises(ValueError, match="NaN"):
        neuron.retune(torch.tensor(float("nan")))


def test_a_bound_lowers_threshold_and_amplitude_alike() -> None:
    neuron = IntegrateFire(torch.tensor([1.0, 4.0, 0.0]), torch.tensor([3.0, 8.0, 1.0]))
    neuron.limit(2.0)
    assert neuron.threshold[:2].tolist() == [1.0, 2.0]
    assert neuron.amplitude.tolist() == [3.0, 4.0, 0.0]
    assert neuron.dead.tolist() == [False, False, True]


@pytest.mark.parametrize("threshold", [torch.tensor(2.0), torch.rand(8), torch.rand(8, 3, 5)])
def test_a_membrane_starts_alike_in_every_memory_format(threshold: Tensor) -> None:
    neuron, shape = IntegrateFire(threshold, initial=HALF), torch.Size((2, 8, 3, 5))
    last = neuron.start(shape, 0, 0, torch.channels_last)
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, neuron.start(shape, 0, 0))
