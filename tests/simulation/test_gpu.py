"""On a GPU: the spikes of a CPU where sums are exact, and one result however the work is cut."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rheobase import HALF, Margin, convert, evaluate, prepare, simulate
from rheobase.analysis.certificate import at_once
from rheobase.analysis.evaluation import accuracy
from rheobase.methods.sigma_delta import SumCode
from rheobase.network.snn import SNN
from rheobase.simulation import Run, Simulator
from rheobase.simulation.device import DEVICES
from rheobase.simulation.profiles import PROFILES
from rheobase.training import datasets, models
from rheobase.training.recipe import find_recipe
from rheobase.training.state import Epoch
from rheobase.training.trainer import Trained, train

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

GPU = "cuda"
NETWORKS = ["vgg16", "resnet20", "resnet18"]


def images(count: int, seed: int = 1) -> Tensor:
    return (
        torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed)).mul(16).round().div(16)
    )


@cache
def _network(name: str, grid: bool) -> SNN:
    torch.manual_seed(0)
    snn = convert(models.build(name, 10).eval(), "max-norm", images(32, seed=0), initial=HALF)
    if grid:
        for parameter in snn.parameters():
            parameter.data = round_to_grid(parameter.data)
        for neuron in snn.neurons.values():
            neuron.retune(round_to_grid(neuron.threshold), neuron.amplitude)
    return snn


def round_to_grid(values: Tensor) -> Tensor:
    """Multiples of one power of two, up to 2¹⁴ of it: too many bits for half precision, exact in single."""
    step = torch.ldexp(torch.ones(()), torch.frexp(values.abs().max()).exponent - 14)
    return (values / step).round() * step


def network(name: str, *, grid: bool = False) -> SNN:
    """A network of its own; on a grid, every order of a sum gives the same."""
    return copy.deepcopy(_network(name, grid))


def sum_code(name: str) -> SNN:
    """A network whose activations have the size that training gives them."""
    torch.manual_seed(0)
    model = models.build(name, 10)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    with torch.no_grad():
        for _ in range(40):  # until the running statistics have settled
            model(images(64, seed=0))
    return convert(model.eval(), SumCode(levels=16, sizes=4), images(32, seed=0))


def assert_same(got: Run, want: Run) -> None:
    """Bit for bit."""
    assert torch.equal(got.logits.cpu(), want.logits.cpu())
    assert got.spikes.keys() == want.spikes.keys() != set()
    for site, counts in want.spikes.items():
        assert torch.equal(got.spikes[site].cpu(), counts.cpu()), site


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_large_batches_give_the_spikes_of_the_cpu(name: str, profile: str) -> None:
    """A few images many times, so that kernels are cut as in use and a CPU can tell what is right."""
    snn, x, times = network(name, grid=True), images(8), 64
    here = simulate(snn, x, 6, profile=profile)
    there = Simulator(snn.to(GPU), x.repeat(times, 1, 1, 1).to(GPU), 6, chunk=4, profile=profile).run(
        x.repeat(times, 1, 1, 1).to(GPU)
    )
    assert (there.profile, there.notes) == (profile, ())
    first, *others = snn.sites
    assert there.kernels[first] == "triton scan"
    assert all(there.kernels[site].startswith("triton fused") for site in others)
    for site in snn.sites:
        assert here.spikes[site].sum() > 0
        assert torch.equal(there.spikes[site].cpu(), times * here.spikes[site]), site
    torch.testing.assert_close(there.logits.cpu(), here.logits.repeat(1, times, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
def test_large_batches_of_the_sum_code_give_the_events_of_the_cpu(name: str) -> None:
    """In `int8`; the first layer, which is in single precision, is on a grid."""
    snn, x, times = sum_code(name), images(8), 64
    stem, neuron = snn.module.get_submodule(snn.source(snn.sites[0])), snn.neuron(snn.sites[0])
    for values, unit in ((stem.weight.data, 256), (stem.bias.data, 256), (neuron.threshold, 4096)):
        values.mul_(unit).round_().div_(unit)
    here = simulate(snn, x, 12, profile="int8")
    many = x.repeat(times, 1, 1, 1).to(GPU)
    simulator = Simulator(snn.to(GPU), many, 12, profile="int8")
    for there in [simulator.run(many) for _ in range(3)]:
        assert (there.profile, there.notes) == ("int8", ())
        assert {there.kernels[site] for site in snn.sites[1:]} <= {
            "triton fused",
            "int8 product + triton encode",
        }
        assert there.last_event.cpu().tolist() == times * here.last_event.tolist()
        for site in snn.sites:
            assert here.spikes[site].sum() > 0
            assert torch.equal(there.spikes[site].cpu(), times * here.spikes[site]), site
    assert simulator.graph


@pytest.mark.parametrize("profile", PROFILES)
def test_the_sum_code_ends_at_the_quantised_network(profile: str) -> None:
    snn, x = sum_code("resnet20").to(GPU), images(64).to(GPU)
    run = simulate(snn, x, 48, at=[48], profile=profile)
    whole = simulate(at_once(snn), x, 1, profile=profile)
    assert run.last_event.max() < 48
    assert torch.equal(run.logits[0], whole.logits[0])


@pytest.mark.parametrize("name", ["resnet20", "vgg16"])
def test_batches_and_chunks_change_nothing(name: str) -> None:
    """Weights as they come: every sum must be taken in the same order."""
    snn, x = network(name).to(GPU), images(165).to(GPU)
    whole = simulate(snn, x, 8)
    for size, chunk in ((33, 3), (128, 5)):
        parts = [Simulator(snn, part, 8, chunk=chunk).run(part) for part in torch.split(x, size)]
        assert torch.equal(torch.cat([part.logits for part in parts], 1), whole.logits)
        for site in snn.sites:
            assert torch.equal(sum(part.spikes[site] for part in parts), whole.spikes[site]), site
    tight = simulate(snn, x, 8, memory=2**27)
    assert tight.chunk != whole.chunk
    assert_same(tight, whole)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_recorded_run_is_the_run(profile: str) -> None:
    """Also of batches of other sizes in between, as the last one of a dataset."""
    snn = network("resnet20").to(GPU)
    simulator = Simulator(snn, images(33).to(GPU), 20, at=[7, 20], profile=profile)
    kept = []
    for seed, size in enumerate((128, 128, 33, 128, 33, 33, 128)):
        x = images(size, seed).to(GPU)
        kept.append((simulator.run(x), simulate(snn, x, 20, at=[7, 20], profile=profile)))
    assert simulator.graph
    assert simulator.notes == []
    for recorded, plain in kept:
        assert_same(recorded, plain)


def test_fast_stays_near_exact() -> None:
    snn, x = network("resnet20").to(GPU), images(128).to(GPU)
    exact, fast = (simulate(snn, x, 32, at=[32], profile=profile) for profile in ("exact", "fast"))
    assert (fast.logits - exact.logits).abs().max() <= 0.1 * exact.logits.abs().max()
    for site, counts in exact.spikes.items():
        torch.testing.assert_close(fast.spikes[site].sum(), counts.sum(), rtol=0.01, atol=10)


def test_memory_keeps_to_the_cap_and_does_not_grow_with_steps() -> None:
    snn, x = network("resnet20").to(GPU), images(512).to(GPU)
    for cap in (2**29, None):
        peaks = []
        for steps in (32, 512):
            simulator = Simulator(snn, x, steps, at=[steps], profile="fast", memory=cap, count_spikes=False)
            simulator.graph = False
            simulator.run(x)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            held = torch.cuda.memory_allocated()
            simulator.run(x)
            peaks.append(torch.cuda.max_memory_allocated() - held)
        assert peaks[1] <= 1.05 * peaks[0]
        assert cap is None or max(peaks) <= 1.2 * cap


@pytest.fixture
def little_memory() -> Iterator[None]:
    """All but 600 MiB of the GPU are taken."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 600 * 2**20) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_too_little_memory_is_no_error(little_memory: None) -> None:
    snn, x = network("resnet20").to(GPU), images(512).to(GPU)
    simulator = Simulator(snn, x, 16, at=[16])
    runs = [simulator.run(x) for _ in range(3)]
    assert any(note.startswith("out of memory") for note in simulator.notes)
    torch.cuda.set_per_process_memory_fraction(1.0)
    plenty = simulate(snn, x, 16, at=[16])
    assert plenty.notes == ()
    for run in runs:
        assert_same(run, plenty)


def test_samples_leave_as_on_the_cpu() -> None:
    snn, x = network("resnet20", grid=True), images(33)
    first, second = simulate(snn, x, 12).logits.topk(2, dim=-1).values.unbind(-1)
    margins = (first - second)[3:].flatten().sort().values
    rule = Margin(margins[len(margins) // 2 : len(margins) // 2 + 2].mean().item(), after=2)
    here = simulate(snn, x, 12, exit_rule=rule)
    assert len(here.left.unique()) > 2
    there = simulate(snn.to(GPU), x.to(GPU), 12, exit_rule=rule)
    assert torch.equal(there.left.cpu(), here.left)
    for site in snn.sites:
        assert torch.equal(there.spikes[site].cpu(), here.spikes[site]), site


@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_operations_are_counted_alike(profile: str) -> None:
    snn, x = network("resnet20", grid=True), images(33)
    data = (x, torch.zeros(33, dtype=torch.int64))
    here = evaluate(snn, data, 6, profile=profile, progress=False)
    there = evaluate(snn.to(GPU), data, 6, profile=profile, progress=False)
    again = evaluate(snn, data, 6, profile=profile, progress=False)
    assert there.sop == again.sop == here.sop
    assert there.spikes == again.spikes == here.spikes
    assert there.accuracy == again.accuracy == here.accuracy


@pytest.mark.parametrize("size", [1, 40])
def test_simulations_use_what_they_prepared(size: int) -> None:
    snn, x = network("resnet20", grid=True), images(size)
    here = simulate(snn, x, 6, profile="int8")
    snn.to(GPU)
    for _ in range(4):
        there = simulate(snn, x.to(GPU), 6, profile="int8")
        assert all(torch.equal(there.spikes[site].cpu(), here.spikes[site]) for site in snn.sites)
    (simulator,) = vars(snn)["_prepared"].simulators.values()
    assert simulator.graph
    assert simulator.recordings._kept[size] is not None
    other = images(size, seed=2)
    there, here = (
        simulate(snn, other.to(GPU), 6, profile="int8"),
        simulate(snn.cpu(), other, 6, profile="int8"),
    )
    assert all(torch.equal(there.spikes[site].cpu(), here.spikes[site]) for site in snn.sites)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_captured_run_is_replayed_and_its_inputs_are_still_refused(value: float) -> None:
    snn, x = network("resnet20", grid=True).to(GPU), images(2).to(GPU)
    wanted, *_ = (simulate(snn, x, 6, profile="int8") for _ in range(4))
    (simulator,) = vars(snn)["_prepared"].simulators.values()
    assert simulator.recordings._kept[2] is not None
    bad = x.clone()
    bad[1, 2, 3, 4] = value
    with pytest.raises(ValueError, match="NaN or infinite"):
        simulate(snn, bad, 6, profile="int8")
    assert_same(simulate(snn, x, 6, profile="int8"), wanted)
    with torch.no_grad():
        next(snn.parameters()).mul_(2)
    changed = simulate(snn, x, 6, profile="int8")
    assert not torch.equal(changed.logits, wanted.logits)
    assert_same(changed, simulate(copy.deepcopy(snn), x, 6, profile="int8"))


def test_without_triton_it_is_slower_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = network("resnet20"), images(4)  # on no grid: hardly a potential meets its threshold exactly
    here = simulate(snn, x, 4)
    monkeypatch.setattr("rheobase.kernels.backends.explain_no_launch", lambda device: "the driver is too old")
    there = simulate(snn.to(GPU), x.to(GPU), 4)
    assert set(there.kernels.values()) == {"reference scan"}
    (note,) = there.notes
    assert note.endswith("the driver is too old")
    for site in snn.sites:
        # The library sums in another order, or by Winograd's way.
        assert torch.allclose(there.spikes[site].cpu().float(), here.spikes[site].float(), rtol=1e-2), site


@pytest.mark.parametrize("profile", ["exact", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("few", "routine"), [(0, "triton fused"), (1 << 30, "triton fused + triton scan")])
def test_currents_first_give_the_same_spikes(
    name: str, few: int, routine: str, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    snn, x = network(name, grid=profile == "exact"), images(1 if profile == "exact" else 2)
    here = simulate(snn, x, 6, profile=profile)
    monkeypatch.setitem(DEVICES, "cuda", replace(DEVICES["cuda"], few_neurons=few))
    there = simulate(snn.to(GPU), x.to(GPU), 6, profile=profile)
    assert {there.kernels[site] for site in snn.sites[1:]} == {routine}
    for site in snn.sites:
        assert torch.equal(there.spikes[site].cpu(), here.spikes[site]), site
    # The read-out is in single precision, where the order of sums differs between devices.
    torch.testing.assert_close(there.logits.cpu(), here.logits)


def test_fast_computes_the_currents_of_few_neurons_first() -> None:
    snn = network("vgg16").to(GPU)
    few, many = (simulate(snn, images(count).to(GPU), 4, profile="fast").kernels for count in (1, 512))
    assert {few[site] for site in snn.sites[1:]} <= {
        "torch conv2d + triton scan",
        "torch linear + triton scan",
    }
    assert many[snn.sites[1]] == "triton fused"


@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_one_image_is_run_many_steps_at_a_time(profile: str) -> None:
    snn, x = network("resnet20", grid=profile == "exact"), images(1)
    here = simulate(snn, x, 40, profile=profile)
    there = simulate(snn.to(GPU), x.to(GPU), 40, profile=profile)
    assert there.chunk == (1, 40)
    for site in snn.sites:
        assert torch.equal(there.spikes[site].cpu(), here.spikes[site]), site


class StopError(Exception):
    """Somebody pulled the plug."""


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_a_training_broken_off_and_resumed_learns_as_much(tmp_path: Path) -> None:
    """Compiled, in bfloat16, from a CUDA graph; on a GPU sums come in any order, so bits are not compared."""
    digits = datasets.load("digits")
    recipe = replace(find_recipe("digits"), epochs=8, compile=True, precision="bfloat16")
    path = tmp_path / "training.safetensors"

    def learn(on_epoch: Callable[..., None] | None = None, checkpoint: Path | None = None) -> Trained:
        torch.manual_seed(0)
        model = prepare(models.build("small", 10), "opi").to(GPU)
        return train(model, digits.train, recipe, checkpoint=checkpoint, progress=False, on_epoch=on_epoch)

    def stop(epoch: Epoch, _: object) -> None:
        if epoch.number == 4:
            raise StopError

    whole = learn()
    with pytest.raises(StopError):
        learn(stop, path)
    resumed = learn(checkpoint=path)
    assert [epoch.number for epoch in resumed.history] == [*range(1, 9)]
    assert resumed.notes[0].startswith("resumed after epoch ")
    reached, wanted = (accuracy(t.model, digits.test.to(GPU)) for t in (resumed, whole))
    assert wanted > 90
    assert abs(reached - wanted) < 3
