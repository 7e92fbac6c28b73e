"""On a GPU: the same spikes as on a CPU where sums are exact, and the same result however work is cut."""

import pytest
import torch

from rheobase import Half, convert, evaluate, models, simulate
from rheobase.profiles import PROFILES
from rheobase.simulation import Simulator
from rheobase.snn import SNN

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

NETWORKS = ["resnet20", "vgg16", "resnet18"]


def images(count: int, seed: int = 1) -> torch.Tensor:
    return (
        torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).mul(16).round().div(16)
    )


def network(name: str, grid: bool) -> SNN:
    torch.manual_seed(0)
    snn = convert(models.build(name, 10).eval(), "max-norm", images(32, seed=0), initial=Half())
    if grid:
        for parameter in snn.parameters():
            parameter.data = (parameter.data * 256).round() / 256
        for neuron in snn.neurons.values():
            neuron.retune((neuron.threshold * 256).round().clamp(min=1) / 256, neuron.amplitude)
    return snn


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_spikes_are_those_of_the_cpu_where_sums_are_exact(name: str, profile: str) -> None:
    snn, x = network(name, grid=True), images(4)
    here = simulate(snn, x, 6, profile=profile)
    there = simulate(snn.cuda(), x.cuda(), 6, chunk=4, profile=profile)
    assert all(torch.equal(there.spikes[site].cpu(), here.spikes[site]) for site in snn.sites)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_batches_and_chunks_change_nothing(name: str, profile: str) -> None:
    snn, x = network(name, grid=False).cuda(), images(24).cuda()
    whole = simulate(snn, x, 8, profile=profile)
    parts = [simulate(snn, part, 8, chunk=3, profile=profile) for part in torch.split(x, 5)]
    assert torch.equal(torch.cat([part.logits for part in parts], 1), whole.logits)
    for site in snn.sites:
        assert torch.equal(sum(part.spikes[site] for part in parts), whole.spikes[site])


@pytest.mark.parametrize("profile", PROFILES)
def test_a_recorded_run_is_the_run(profile: str) -> None:
    snn = network("resnet20", grid=False).cuda()
    simulator = Simulator(snn, images(16).cuda(), 8, profile=profile)
    for seed in (1, 2, 3, 4):
        x = images(16, seed).cuda()
        once, again = simulate(snn, x, 8, profile=profile), simulator.run(x)
        assert torch.equal(again.logits, once.logits)
        assert all(torch.equal(again.spikes[site], once.spikes[site]) for site in snn.sites)


def test_memory_does_not_grow_with_steps() -> None:
    snn, x = network("resnet20", grid=False).cuda(), images(256).cuda()
    peaks = []
    for steps in (32, 512):
        simulator = Simulator(snn, x, steps, at=[steps], profile="fast", memory=2**29, count=False)
        simulator.run(x)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        simulator.run(x)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] <= 1.05 * peaks[0]


def test_operations_are_counted_alike() -> None:
    snn, x = network("resnet20", grid=True), images(8)
    data = (x, torch.zeros(8, dtype=torch.int64))
    here = evaluate(snn, data, 6, progress=False)
    there = evaluate(snn.cuda(), data, 6, progress=False)
    assert there.sop == here.sop
    assert there.spikes == here.spikes
