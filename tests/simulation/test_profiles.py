"""The arithmetic of a simulation: what is fused, and that it gives the same network."""

import importlib
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, ZERO, Margin, Uniform, convert, prepare, simulate
from rheobase.network.codings import Poisson
from rheobase.network.snn import SNN
from rheobase.simulation import Probe
from rheobase.simulation.device import DEVICES
from rheobase.simulation.engine import ChunkedRun
from rheobase.simulation.fused_layer import FusedLayer
from rheobase.simulation.fusion import fuse
from rheobase.simulation.plan import mark_tail, plan_calls
from rheobase.simulation.profiles import Integer, find_profile
from rheobase.simulation.simulator import Simulator
from rheobase.training import models

CPU = torch.device("cpu")


def converted(name: str, **options) -> SNN:
    return convert(build(name), "max-norm", inputs(16, seed=5), initial=HALF, **options)


def layers(snn: SNN, profile: str = "int8") -> list[FusedLayer]:
    plan = fuse(mark_tail(plan_calls(snn, inputs(2)), ()), find_profile(profile, CPU))
    return [step.operation for step in plan.steps if isinstance(step.operation, FusedLayer)]


def onto_grid(snn: SNN) -> SNN:
    """Round weights, biases and thresholds so that sums are exact in every order and in half precision."""
    for parameter in snn.parameters():
        parameter.data = (parameter.data * 64).round().clamp(-100, 100) / 64
    for neuron in snn.neurons.values():
        neuron.retune((neuron.threshold * 64).round().clamp(min=1) / 64, neuron.amplitude)
    return snn


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"SqueezeExcite"}))
def test_fast_equals_exact_where_half_precision_is_exact(name: str) -> None:
    snn = onto_grid(converted(name))
    exact, fast = (simulate(snn, inputs(3), 10, profile=profile) for profile in ("exact", "fast"))
    assert fast.profile == "fast"
    assert all(torch.equal(fast.spikes[site], exact.spikes[site]) for site in snn.sites)
    torch.testing.assert_close(fast.logits, exact.logits)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_profiles_stay_near(name: str, profile: str) -> None:
    """Another rounding of weights is not another network."""
    snn = converted(name)
    exact, other = (simulate(snn, inputs(4), 64, at=[64], profile=p).logits for p in ("exact", profile))
    assert (other - exact).abs().max() <= 0.1 * exact.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_whole_numbers_do_not_depend_on_chunks_and_batches(name: str) -> None:
    snn, x = converted(name), inputs(5)
    whole = simulate(snn, x, 9, profile="int8")
    for chunk in (1, 4):
        part = Simulator(snn, x, 9, chunk=chunk, profile="int8").run(x)
        assert torch.equal(part.logits, whole.logits)
        assert all(torch.equal(part.spikes[s], whole.spikes[s]) for s in snn.sites)
    singles = [Simulator(snn, x[i : i + 1], 9, profile="int8").run(x[i : i + 1], i) for i in range(5)]
    assert torch.equal(torch.cat([s.logits for s in singles], 1), whole.logits)


def test_the_first_site_and_grouped_connections_stay_apart() -> None:
    snn = converted("Plain")
    assert len(layers(snn)) == len(snn.sites) - 1
    grouped = converted("Depthwise")
    assert len(layers(grouped)) < len(grouped.sites) - 1


def test_a_sum_and_its_shortcut_are_part_of_the_layer() -> None:
    assert any(layer.scale is not None for layer in layers(converted("IdentitySkip")))


def test_a_shortcut_through_pixels_is_part_of_the_convolution() -> None:
    x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    snn = onto_grid(convert(models.build("resnet20", 10).eval(), "max-norm", x, initial=HALF))
    plan = fuse(mark_tail(plan_calls(snn, x), ()), find_profile("fast", CPU))
    found = [step.operation for step in plan.steps if isinstance(step.operation, FusedLayer)]
    assert sum(layer.shortcut is not None for layer in found) == 2
    exact, fast = (simulate(snn, x, 6, profile=profile) for profile in ("exact", "fast"))
    assert all(torch.equal(fast.spikes[site], exact.spikes[site]) for site in snn.sites)


def test_a_watched_current_is_not_fused_away() -> None:
    snn, x = converted("Plain"), inputs(2)
    source = snn.source(snn.sites[1])
    seen: list[Tensor] = []
    run = simulate(snn, x, 5, probe=Probe([source], lambda n, s, _: seen.append(s.clone())), profile="int8")
    assert seen
    assert seen[0].is_floating_point()
    assert run.spikes.keys() == set(snn.sites)


def test_whole_numbers_keep_weights_to_half_a_level() -> None:
    weight = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    weight[2] = 0
    profile = Integer()
    gain = profile.gain(weight, torch.ones(6))
    whole = profile.weight(weight, gain)
    assert whole.dtype == torch.int8
    back = whole.float() / gain.view(-1, 1, 1, 1)
    assert ((back - weight).abs() <= 0.5 / gain.view(-1, 1, 1, 1) + 1e-6).all()
    assert whole.abs().flatten(1).amax(1).tolist() == [127, 127, 0, 127, 127, 127]


@pytest.mark.parametrize("factor", [0.0, 1e-9, 1e-6])
def test_whole_numbers_of_channels_with_next_to_no_weights(factor: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten())
    with torch.no_grad():
        model[2].weight *= factor
        model[2].bias.copy_(torch.linspace(-5, 2.6, 8))
    snn = convert(model, "max-norm", inputs(16), initial=HALF)
    exact, whole = (simulate(snn, inputs(3), 40, profile=profile) for profile in ("exact", "int8"))
    torch.testing.assert_close(whole.logits, exact.logits, rtol=0, atol=1e-3)
    assert exact.logits.any()


def test_a_shortcut_of_padded_pixels_stays_apart() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.main = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.shortcut, self.last = nn.Conv2d(8, 8, 1, stride=2, padding=1), nn.Linear(200, 5)

        def forward(self, x: Tensor) -> Tensor:
            early = self.first(x).relu()
            late = nn.functional.pad(nn.functional.avg_pool2d(early, 2).relu(), (0, 1, 0, 1))
            return self.last((self.main(late) + self.shortcut(early)).relu().flatten(1))

    torch.manual_seed(0)
    snn = convert(Padded(), "max-norm", inputs(16), initial=HALF)
    exact, whole = (simulate(snn, inputs(3), 64, at=[64], profile=p).logits for p in ("exact", "int8"))
    assert (whole - exact).abs().max() <= 0.1 * exact.abs().max()


def test_connections_that_stay_in_single_precision_are_named() -> None:
    snn, x = converted("Depthwise"), inputs(2)
    apart = [n for n, m in snn.module.named_modules() if isinstance(m, nn.Conv2d) and m.groups > 1]
    (note,) = simulate(snn, x, 4, profile="int8").notes
    assert apart
    assert all(name in note for name in (*apart, "int8", "torch.float32"))
    assert simulate(snn, x, 4).notes == simulate(converted("Plain"), x, 4, profile="int8").notes == ()


def test_a_simulator_runs_many_batches() -> None:
    snn = converted("IdentitySkip")
    simulator = Simulator(snn, inputs(4), 12, at=[4, 12], profile="fast")
    for seed, size in ((1, 4), (2, 4), (3, 2), (4, 4)):
        x = inputs(size, seed=seed)
        once = simulate(snn, x, 12, at=[4, 12], profile="fast")
        again = simulator.run(x)
        assert torch.equal(again.logits, once.logits)
        assert all(torch.equal(again.spikes[s], once.spikes[s]) for s in snn.sites)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'fp4'.*exact, fast, int8"):
        simulate(converted("Plain"), inputs(2), 4, profile="fp4")


def test_other_starts_and_strict_neurons() -> None:
    snn = converted("IdentitySkip")
    zero = convert(build("IdentitySkip"), "max-norm", inputs(16, seed=5), initial=ZERO)
    runs = [simulate(s, inputs(3), 8, profile="int8") for s in (snn, zero)]
    assert sum(c.sum() for c in runs[0].spikes.values()) > sum(c.sum() for c in runs[1].spikes.values())


@pytest.mark.parametrize("profile", ["exact", "fast", "int8"])
@pytest.mark.parametrize("delay", [0, 3])
def test_what_is_read_out_does_not_depend_on_what_else_is(profile: str, delay: int) -> None:
    snn, x = converted("SharedReLU"), inputs(3)
    every = Simulator(snn, x, 12, delay=delay, chunk=5, profile=profile).run(x).logits
    for at in ([12], [4, 11], [6, 7, 8, 9, 10]):
        some = Simulator(snn, x, 12, at=at, delay=delay, chunk=2, profile=profile).run(x).logits
        torch.testing.assert_close(some, every[[t - delay - 1 for t in at]])


def test_too_little_memory_is_halved_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = converted("Plain"), inputs(4)
    expected = simulate(snn, x, 8)
    original, failures = ChunkedRun.run, iter([True, True, False])

    def failing(self: ChunkedRun, *arguments: object) -> tuple[Tensor, Tensor]:
        if next(failures, False):
            raise torch.OutOfMemoryError("no room")
        return original(self, *arguments)

    monkeypatch.setattr(ChunkedRun, "run", failing)
    run = simulate(snn, x, 8, memory=64 * 2**20)
    assert [note.split(":")[0] for note in run.notes] == ["out of memory"] * 2
    assert "16.0 MiB" in run.notes[-1]
    assert torch.equal(run.logits, expected.logits)
    monkeypatch.setattr(
        ChunkedRun, "run", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no room"))
    )
    with pytest.raises(ValueError, match=r"cap of .* MiB.* needs 0.0 MiB"):
        simulate(snn, x, 8)


def test_a_fused_kernel_that_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rheobase.simulation.simulator.explain_no_triton", lambda device: "no triton here")
    simulator = Simulator(converted("Plain"), inputs(2), 4)
    assert simulator.notes == []
    assert simulator._fuses(torch.device("cuda")) is False
    assert len(simulator.notes) == 1
    assert "no triton here" in simulator.notes[0]


def test_leaving_early_keeps_to_the_memory_cap() -> None:
    """The spikes of all sites are kept until it is known who was still there."""
    x = inputs(16)
    simulator = Simulator(converted("Plain"), x, 32, memory=2**17, exit_rule=Margin(1.0))
    plan = simulator.plan
    samples, chunk = simulator._cut(16)
    assert samples * (plan.fixed_bytes + chunk * (plan.moving_bytes + plan.spike_bytes)) <= 2**17
    simulator.exit_rule = None
    assert simulator._cut(16) != (samples, chunk)


def test_double_precision_is_not_made_single() -> None:
    simulator = Simulator(converted("Plain").double(), inputs(2), 4)
    assert simulator._fuses(torch.device("cuda")) is False
    assert simulator.notes == []


@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_inputs_in_spikes_and_neurons_of_other_kinds(profile: str) -> None:
    x = inputs(4)
    poisson = convert(build("Plain"), "max-norm", inputs(16, seed=5), coding=Poisson(scale=8.0))
    exact, other = (simulate(poisson, x, 64, at=[64], profile=p).logits for p in ("exact", profile))
    assert (other - exact).abs().max() <= 0.1 * exact.abs().max()
    few = convert(build("Plain"), "few-spikes", inputs(32))
    exact, other = (simulate(few, x, 10, at=[10], profile=p).logits for p in ("exact", profile))
    assert torch.equal(other, exact)


class Blocks(nn.Module):
    """One of each thing that the networks on a GPU are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.same = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.down = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(24, 24, 3, padding=1)
        self.shortcut = nn.Conv2d(16, 24, 1, stride=2)
        self.pool = nn.AvgPool2d(2)
        self.small = nn.Conv2d(24, 20, 3, padding=1)
        self.hidden, self.head = nn.Linear(80, 33), nn.Linear(33, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.same[1](self.same[0](x).relu()) + x).relu()
        x = (self.wide(self.down(x).relu()) + self.shortcut(x)).relu()
        x = self.small(self.pool(x)).relu()
        y: Tensor = self.head(self.hidden(x.flatten(1)).relu())
        return y


@pytest.mark.parametrize(
    ("profile", "few", "routine"),
    [
        ("exact", 0, "triton fused"),
        ("fast", 0, "triton fused"),
        ("int8", 0, "triton fused"),
        ("int8", 1 << 18, "triton fused + triton scan"),
    ],
)
def test_the_kernels_of_a_gpu_give_the_spikes_of_the_reference(
    profile: str, few: int, routine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole engine as on a GPU, by Triton's interpreter: shortcuts, residuals, strides, few channels."""
    pytest.importorskip("triton")
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0)).mul(16).round().div(16)
    torch.manual_seed(0)
    snn = onto_grid(convert(Blocks().eval(), "max-norm", x, initial=HALF))
    expected = simulate(snn, x, 3, profile="int8" if profile == "int8" else "exact")
    for name in ("backends", "integrate_fire", "sum_pool", "tally"):
        module = importlib.import_module(f"rheobase.kernels.{name}")
        monkeypatch.setattr(module, "choose_backend", lambda *_, **__: "triton")
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cuda"], few_neurons=few, graphs=False))
    monkeypatch.setattr(Simulator, "_fuses", lambda *_: True)
    run = Simulator(snn, x, 3, chunk=2, profile=profile).run(x)
    plan = Simulator(snn, x, 3, profile=profile).plan
    fused = [step.operation for step in plan.steps if isinstance(step.operation, FusedLayer)]
    assert len(fused) == len(snn.sites) - 1
    assert {(layer.shortcut is not None, layer.scale is not None) for layer in fused} == {
        (False, False),
        (True, False),
        (False, True),
    }
    for site in snn.sites:
        assert run.spikes[site].sum() > 0
        assert torch.equal(run.spikes[site], expected.spikes[site]), site
    torch.testing.assert_close(run.logits, expected.logits)
    assert [run.kernels[site] for site in snn.sites] == ["triton scan", *[routine] * 6]


class Again:
    """What takes the place of a CUDA graph: the work is done again."""

    def __init__(self, work, device, pool) -> None:
        self.replay = work
        work()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let runs be recorded without a GPU; gives the number of recordings made."""
    made: list[int] = []

    def record(work, device, pool) -> Again:
        made.append(pool)
        return Again(work, device, pool)

    monkeypatch.setattr("rheobase.simulation.cuda_graphs.record", record)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, 1))
    return made


def test_recorded_runs_are_the_runs(recorded: list[int]) -> None:
    snn = converted("IdentitySkip")
    simulator = Simulator(snn, inputs(4), 8)
    simulator.graph = True
    kept = []
    for seed, size in ((1, 4), (2, 4), (3, 2), (4, 4), (5, 2), (6, 2)):
        x = inputs(size, seed=seed)
        once, again = simulate(snn, x, 8), simulator.run(x)
        kept.append((once, again))
    assert recorded == [(0, 1), (0, 1)]  # one for each size, in one memory
    for once, again in kept:  # and no later run has changed an earlier result
        assert torch.equal(again.logits, once.logits)
        assert all(torch.equal(again.spikes[s], once.spikes[s]) for s in snn.sites)


def test_what_cannot_be_recorded_is_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("not while recording\nmore")

    monkeypatch.setattr("rheobase.simulation.cuda_graphs.record", fail)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: (0, 1))
    snn, x = converted("Plain"), inputs(4)
    simulator = Simulator(snn, x, 8)
    simulator.graph = True
    runs = [simulator.run(x) for _ in range(3)]
    assert runs[0].notes == ()
    (note,) = runs[1].notes
    assert note.endswith("not while recording")
    assert runs[2].notes == (note,)
    assert all(torch.equal(run.logits, runs[0].logits) for run in runs)


def test_too_little_memory_for_a_recording(recorded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = converted("Plain"), inputs(4)
    simulator = Simulator(snn, x, 8)
    simulator.graph = True
    first = simulator.run(x)

    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("rheobase.simulation.cuda_graphs.record", fail)
        second = simulator.run(x)
    assert [note.split(":")[0] for note in second.notes] == ["out of memory"]
    third = simulator.run(x)
    assert len(recorded) == 1
    assert all(torch.equal(run.logits, first.logits) for run in (second, third))


def test_only_runs_that_are_always_the_same_are_recorded() -> None:
    x = inputs(4)
    assert Simulator(converted("Plain"), x, 4)._is_repeatable()
    poisson = convert(build("Plain"), "max-norm", inputs(16), coding=Poisson(scale=8.0))
    assert not Simulator(poisson, x, 4)._is_repeatable()
    drawn = convert(build("Plain"), "max-norm", inputs(16), initial=Uniform())
    assert not Simulator(drawn, x, 4)._is_repeatable()
    graded = converted("Plain")
    neuron = graded.neuron(graded.sites[0])
    neuron.retune(neuron.threshold, 2 * torch.ones_like(neuron.threshold))
    assert not Simulator(graded, x, 4)._is_repeatable()


def test_a_simulator_wants_the_shape_it_was_made_for() -> None:
    snn = convert(prepare(build("Plain"), "opi"), "opi")
    assert snn.input_shape is None
    simulator = Simulator(snn, inputs(2), 4)
    with pytest.raises(ValueError, match=r"\(3, 16, 16\).*\(3, 8, 8\)"):
        simulator.run(torch.zeros(2, 3, 16, 16))


def test_currents_first_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU for few neurons in `fast`."""
    snn, x = onto_grid(converted("IdentitySkip")), inputs(3)
    fused = simulate(snn, x, 7, profile="fast")
    original, lengths = FusedLayer._float_currents, set[int]()

    def compute(self: FusedLayer, spikes_TB: Tensor, *others: Tensor) -> Tensor:
        lengths.add(len(spikes_TB))
        return original(self, spikes_TB, *others)

    monkeypatch.setattr(FusedLayer, "_float_currents", compute)
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], few_neurons=1 << 18))
    whole = simulate(snn, x, 7, profile="fast")
    assert lengths == {7}
    assert whole.kernels[snn.sites[1]].startswith("torch conv2d + ")
    monkeypatch.setattr("rheobase.simulation.fused_layer._PIECE", 2 * 3 * 8 * 8 * 8)
    pieces = simulate(snn, x, 7, profile="fast")
    assert min(lengths) < 7
    for site in snn.sites:
        assert torch.equal(pieces.spikes[site], whole.spikes[site])
        # Currents are rounded to half precision.
        torch.testing.assert_close(whole.spikes[site], fused.spikes[site], rtol=0.05, atol=5)


@pytest.mark.parametrize(
    "name", sorted(set(FAMILIES) - {"Depthwise", "OneDimensional", "Shuffled", "Transposed"})
)
def test_integer_currents_may_be_computed_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU for few neurons in `int8`: the same spikes."""
    snn, x = converted(name), inputs(3)
    fused = simulate(snn, x, 7, profile="int8")
    taken: list[int] = []
    fire = FusedLayer._fire

    def watch(self: FusedLayer, *given: Tensor) -> None:
        taken.append(given[0].shape[1])
        fire(self, *given)

    monkeypatch.setattr(FusedLayer, "_fire", watch)
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], few_neurons=1 << 18))
    whole = simulate(snn, x, 7, profile="int8")
    assert set(taken) == {3 * 7}
    chunks = Simulator(snn, x, 7, profile="int8", chunk=3).run(x)
    monkeypatch.setattr("rheobase.simulation.fused_layer._OWN_PIECE", 2 * 3 * 8 * 8 * 8)
    pieces = simulate(snn, x, 7, profile="int8")
    assert min(taken) < 3 * 7
    for run in (whole, chunks, pieces):
        assert torch.equal(run.logits, fused.logits)
        for site in snn.sites:
            assert torch.equal(run.spikes[site], fused.spikes[site])
