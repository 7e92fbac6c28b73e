"""Fused layers of the sum code: every way to compute them gives the events of the definition."""

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from rheobase import Margin, convert, simulate
from rheobase.methods.sigma_delta import SumCode
from rheobase.network import MaxPool, SigmaDelta
from rheobase.network.snn import SNN
from rheobase.simulation import Probe, Simulator
from rheobase.simulation.changes import Changes, Rows
from rheobase.simulation.device import DEVICES
from rheobase.simulation.fused_layer import SumPool
from rheobase.simulation.quantised_layer import QuantisedLayer

# Random channels: a few never activate, and their neurons are dead.
pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

PROFILES = ("exact", "fast", "int8")


class Blocks(nn.Module):
    """A residual block, a shortcut through pixels, both kinds of pooling, a bound and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.same = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.wide, self.shortcut = nn.Conv2d(16, 24, 3, padding=1), nn.Conv2d(16, 24, 1)
        self.small = nn.Conv2d(24, 20, 3, padding=1)
        self.hidden, self.head = nn.Linear(80, 33), nn.Linear(33, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.same[1](self.same[0](x).relu()) + x).relu()
        x = F.max_pool2d(x, 2)
        x = (self.wide(x) + self.shortcut(x)).relu()
        x = F.relu6(self.small(F.avg_pool2d(x, 2)))
        y: Tensor = self.head(self.hidden(x.flatten(1)).relu())
        return y


def images(count: int = 3, seed: int = 0) -> Tensor:
    x = torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return x.mul(16).round().div(16)


def convert_net(net: nn.Module, levels: int, sizes: int | str) -> SNN:
    return convert(net.eval(), SumCode(levels=levels, sizes=sizes), images(64, seed=5))


def converted(levels: int = 16, sizes: int | str = 3) -> SNN:
    torch.manual_seed(0)
    return convert_net(Blocks(), levels, sizes)


def onto_grid(snn: SNN) -> SNN:
    """Round weights, biases and quanta so that sums are exact in every order and in half precision."""
    for parameter in snn.parameters():
        parameter.data = (parameter.data * 64).round().clamp(-100, 100) / 64
    for neuron in snn.neurons.values():
        rounded = (neuron.threshold * 64).round().clamp(min=1) / 64
        neuron.retune(rounded.where(~neuron.dead, 0), neuron.amplitude)
        neuron.amplitude.fill_(1)
    return snn


def watch(snn: SNN, x: Tensor, steps: int, profile: str, **options) -> tuple[dict[str, Tensor], Simulator]:
    """The counts of every site after every step, and the simulator."""
    seen: dict[str, list[Tensor]] = {site: [] for site in snn.sites}
    probe = Probe(None, lambda site, signal, before: seen[site].append(signal.clone()))
    # In one chunk, as samples that are silent leave at its end.
    simulator = Simulator(snn, x, steps, profile=profile, probe=probe, chunk=steps, **options)
    simulator.run(x)
    return {site: torch.cat(parts) for site, parts in seen.items()}, simulator


def layers(simulator: Simulator) -> list[QuantisedLayer]:
    operations = [step.operation for step in simulator.plan.steps]
    return [operation for operation in operations if isinstance(operation, QuantisedLayer)]


def send(target: Tensor, count: Tensor, sizes: int) -> Tensor:
    """Events by Python's integers."""
    events = []
    for difference in (target - count).flatten().tolist():
        size = min(abs(difference).bit_length(), sizes)
        events.append((1 << size >> 1) * (1 if difference > 0 else -1))
    return torch.tensor(events).view(count.shape)


class Oracle:
    """A fused plan in integers, event by event: potentials add up what arrives, and nothing else."""

    def __init__(self, simulator: Simulator, x: Tensor, sizes: int) -> None:
        self.simulator, self.x, self.sizes = simulator, x, sizes
        self.potential: dict[str, Tensor] = {}
        self.count: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}

    def step(self) -> dict[str, Tensor]:
        """The counts of all nodes after one more step."""
        snn = self.simulator.snn
        events: dict[str, Tensor] = {}
        for step in self.simulator.plan.steps:
            name, operation = step.name, step.operation
            if step.still or step.tail:
                continue
            arriving = [events[str(i.target)] for i in step.inputs if str(i.target) in events]
            if isinstance(operation, QuantisedLayer):
                z = self.weigh(operation, arriving)
                if name not in self.potential:
                    z = z + operation.bias.long().view(-1, *[1] * (z.dim() - 2))
                self.potential[name] = self.potential.get(name, 0) + z
                theta, high = (
                    v.long().view(-1, *[1] * (z.dim() - 2)) for v in (operation.threshold, operation.high)
                )
                target = torch.minimum(
                    self.potential[name].div(theta, rounding_mode="floor").clamp(min=0), high
                )
                events[name] = self.fire(name, target)
            elif isinstance(operation, SigmaDelta):
                z = snn.module.get_submodule(str(step.inputs[0].target))(self.x)
                events[name] = self.fire(name, operation.target(z).long())
            elif isinstance(operation, MaxPool):
                (source,) = (str(i.target) for i in step.inputs)
                pooled = F.max_pool2d(self.count[source].double(), 2).long()
                events[name] = pooled - self.count.get(name, torch.zeros_like(pooled))
                self.count[name] = pooled
            elif isinstance(operation, SumPool):
                events[name] = F.avg_pool2d(arriving[0].double(), 2).mul(4).long()
            else:
                events[name] = operation(arriving[0])
        return {site: self.count[site].clone() for site in snn.sites}

    def weigh(self, layer: QuantisedLayer, arriving: list[Tensor]) -> Tensor:
        first, weight = arriving[0].double(), layer.weight.double()
        if isinstance(layer.synapse, nn.Linear):
            return F.linear(first, weight).long()
        if layer.shortcut is not None:
            split = layer.synapse.in_channels
            own = F.conv2d(first, weight[:, :split], padding=1)
            return (own + F.conv2d(arriving[-1].double(), weight[:, split:, 1:2, 1:2])).long()
        z = F.conv2d(first, weight, padding=layer.synapse.padding).long()
        return z if layer.scale is None else z + arriving[1] * layer.scale.long()[:, None, None]

    def fire(self, name: str, target: Tensor) -> Tensor:
        count = self.count.get(name, torch.zeros_like(target))
        event = send(target, count, self.sizes)
        self.count[name] = count + event
        return event


@pytest.mark.parametrize(("levels", "sizes"), [(16, 3), (31, 5), (31, 1), (127, 7)])
def test_int8_equals_integers_event_by_event(levels: int, sizes: int) -> None:
    """Pooled counts of 127 levels do not fit, so that layers behind average pooling are not fused then."""
    snn, x = converted(levels, sizes), images()
    got, simulator = watch(snn, x, 9, "int8")
    fused = layers(simulator)
    kinds = {(layer.shortcut is not None, layer.scale is not None) for layer in fused}
    assert kinds == {(False, False), (True, False), (False, True)}
    assert len(fused) == (len(snn.sites) - 1 if levels < 127 else len(snn.sites) - 2)
    if levels == 127:
        return
    oracle = Oracle(simulator, x, sizes)
    for t in range(9):
        for site, count in oracle.step().items():
            assert torch.equal(got[site][t].long(), count), (t, site)
    assert all(counts.any() for counts in got.values())


@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_on_a_grid_all_profiles_agree(profile: str) -> None:
    """In `int8` a quantum is rounded; on this grid all numbers of a layer are integers of one scale."""
    snn, x = onto_grid(converted()), images()
    exact, other = (watch(snn, x, 8, p)[0] for p in ("exact", profile))
    for site in snn.sites:
        assert exact[site].any()
        if profile == "fast":
            assert torch.equal(other[site], exact[site]), site
        else:
            assert (other[site] - exact[site]).abs().mean() < 0.2


@pytest.mark.parametrize("profile", PROFILES)
def test_the_kernels_of_a_gpu_give_the_counts_of_the_reference(
    profile: str, emulate_gpu: Callable[..., None]
) -> None:
    """The whole engine as on a GPU, by Triton's interpreter."""
    snn, x = onto_grid(converted()), images(2)
    options = {"count_operations": True}
    expected = Simulator(snn, x, 4, profile="int8" if profile == "int8" else "exact", **options).run(x)
    emulate_gpu()
    simulator = Simulator(snn, x, 4, profile=profile, **options)
    run = simulator.run(x)
    assert len(layers(simulator)) == len(snn.sites) - 1
    assert simulator._is_repeatable()
    for site in snn.sites:
        assert run.spikes[site].sum() > 0
        assert torch.equal(run.spikes[site], expected.spikes[site]), site
    assert torch.equal(run.sop, expected.sop)
    assert torch.equal(run.last_event, expected.last_event)
    torch.testing.assert_close(run.logits, expected.logits)
    assert [run.kernels[site] for site in snn.sites] == [
        "triton encode",
        *["triton fused"] * (len(snn.sites) - 1),
    ]


@pytest.mark.parametrize("profile", PROFILES)
def test_at_silence_the_sizes_do_not_matter(profile: str) -> None:
    snn, x = converted(), images()
    run = simulate(snn, x, 40, at=[40], profile=profile)
    assert run.last_event.max() < 40
    at_once = copy.deepcopy(snn)
    for neuron in at_once.neurons.values():
        neuron.sizes = None
    graded = simulate(at_once, x, 40, at=[40], profile=profile)
    assert graded.last_event.max() < run.last_event.max()
    assert torch.equal(run.logits, graded.logits)
    if profile == "exact":
        torch.testing.assert_close(run.logits[0], snn.limit(x))


@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_events_are_counted_where_counts_differ(profile: str) -> None:
    snn, x, steps = converted(), images(), 10
    counts, _ = watch(snn, x, steps, profile)
    simulator = Simulator(snn, x, steps, profile=profile, count_operations=True, chunk=3)
    run = simulator.run(x)
    fan_out, sop = simulator.fan_out, torch.zeros(steps, dtype=torch.float64)
    for site, counts_TB in counts.items():
        earlier = torch.cat([torch.zeros_like(counts_TB[:1]), counts_TB[:-1]])
        changed = (counts_TB != earlier).flatten(1)
        assert run.spikes[site].tolist() == changed.sum(1).tolist(), site
        reached = torch.zeros(counts_TB.shape[2:]) if site not in fan_out else fan_out[site]
        sop += (changed.view(steps, len(x), -1).double() @ reached.flatten().double()).sum(1)
    pools = [s for s in simulator.plan.steps if isinstance(s.operation, MaxPool)]
    for step in pools:  # which send changes of their own
        source = next(str(i.target) for i in step.inputs)
        pooled = F.max_pool2d(counts[source].flatten(0, 1), 2).view(steps, len(x), -1)
        changed = pooled != torch.cat([torch.zeros_like(pooled[:1]), pooled[:-1]])
        sop += (changed.double() @ fan_out[step.name].flatten().double()).sum(1)
    assert run.sop.tolist() == sop.tolist()


@pytest.mark.parametrize("profile", PROFILES)
def test_neither_chunks_nor_batches_matter(profile: str) -> None:
    snn, x = converted(), images(5)
    whole = Simulator(snn, x, 12, profile=profile, count_operations=True).run(x)
    for chunk in (1, 3, 12):
        cut = Simulator(snn, x, 12, profile=profile, count_operations=True, chunk=chunk).run(x)
        assert torch.equal(cut.logits, whole.logits)
        assert torch.equal(cut.last_event, whole.last_event)
        assert all(torch.equal(cut.spikes[site], whole.spikes[site]) for site in snn.sites)
        assert torch.equal(cut.sop, whole.sop)
    alone = [simulate(snn, x[i : i + 1], 12, profile=profile) for i in range(5)]
    assert torch.equal(torch.cat([run.logits for run in alone], 1), whole.logits)
    assert all(torch.equal(sum(run.spikes[s] for run in alone), whole.spikes[s]) for s in snn.sites)


@pytest.mark.parametrize("profile", PROFILES)
def test_dead_channels_stay_at_zero(profile: str) -> None:
    snn, x = converted(), images()
    for site in snn.sites[1:]:
        neuron = snn.neuron(site)
        threshold = neuron.threshold.clone()
        threshold[::3] = 0
        neuron.retune(threshold, torch.ones(()))
        neuron.amplitude.fill_(1)
    counts, _ = watch(snn, x, 6, profile)
    for site in snn.sites[1:]:
        assert not counts[site][:, :, ::3].any()
        assert counts[site].any()


def test_a_quantum_too_fine_for_int8_keeps_its_layer_in_single_precision() -> None:
    """It would round to zero units of its weights."""
    torch.manual_seed(0)
    net, x = Blocks().eval(), images(64, seed=5)
    quanta = convert_net(net, 16, 3).neuron("relu_2").threshold.flatten()
    quanta[0] = 1e-6
    snn = convert(net, SumCode(levels=16, sizes=3, quanta={"relu_2": quanta}), x)
    simulator = Simulator(snn, x, 24, at=[24], profile="int8")
    assert len(layers(simulator)) == len(snn.sites) - 2
    assert any("same.0" in note for note in simulator.notes)
    exact = simulate(snn, x, 24, at=[24])
    assert (simulator.run(x).logits - exact.logits).abs().max() < 0.1 * exact.logits.abs().max()


def test_too_many_levels_stay_in_single_precision() -> None:
    snn, x = converted(2**20, "any"), images()
    exact, other = (simulate(snn, x, 8, profile=profile) for profile in ("exact", "int8"))
    assert torch.equal(exact.logits, other.logits)
    assert len(other.notes) == 1
    assert not layers(Simulator(snn, x, 8, profile="int8"))


def test_signed_and_smooth_sites_are_not_fused() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Conv2d(8, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    snn, x = convert_net(net, 16, 3), images()
    simulator = Simulator(snn, x, 8, profile="int8")
    assert len(layers(simulator)) == 1  # behind the sigmoid, which is never negative
    exact = simulate(snn, x, 40, at=[40])
    torch.testing.assert_close(
        simulate(snn, x, 40, at=[40], profile="int8").logits, exact.logits, rtol=0.1, atol=0.1
    )


@pytest.mark.parametrize("profile", PROFILES)
def test_a_run_in_one_chunk_asks_the_device_nothing(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it can be captured as a CUDA graph."""
    snn, x = converted(), images()
    for name in ("backends", "follow", "sum_pool", "tally"):
        module = importlib.import_module(f"rheobase.kernels.{name}")
        monkeypatch.setattr(module, "choose_backend", lambda *_, **__: "reference")
    monkeypatch.setattr(Simulator, "_fuses", lambda *_: True)
    monkeypatch.setattr("rheobase.simulation.engine.weigh", lambda operation, x: operation(x))
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cuda"], counts=torch.uint8, half=torch.bfloat16))
    simulator = Simulator(snn, x, 12, profile=profile, count_operations=True)
    assert simulator._is_repeatable()
    expected = simulator._run(x, 3, 12, 0)

    def refuse(*_: object) -> None:
        raise AssertionError("the run waits for the device")

    for name in ("item", "tolist", "nonzero", "__bool__", "__int__", "__float__", "__index__"):
        monkeypatch.setattr(Tensor, name, refuse)
    run = simulator._run(x, 3, 12, 0)
    monkeypatch.undo()
    assert run.chunk == (3, 12)
    assert torch.equal(run.logits, expected.logits)


@pytest.mark.parametrize("profile", PROFILES)
def test_rows_that_have_not_changed_are_not_computed(profile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snn, x = converted(), images()
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], skips=False))
    everything, _ = watch(snn, x, 12, profile)
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], skips=True))
    left_out, find = [], Changes.rows

    def spy(self: Changes, nodes: Sequence[fx.Node]) -> Rows | None:
        found = find(self, nodes)
        left_out.append(0 if found is None else len(found[1]) - len(found[0]))
        return found

    monkeypatch.setattr(Changes, "rows", spy)
    some, _ = watch(snn, x, 12, profile)
    assert sum(count > 0 for count in left_out) > 3
    for site in snn.sites:
        assert torch.equal(some[site], everything[site])


def test_which_rows_stand_for_which() -> None:
    first, second = (fx.Graph().placeholder(name) for name in "ab")
    changes = Changes()
    changes.note_events(first, torch.tensor([[0, 2], [0, 0], [3, 0], [0, 0]]))
    changes.note_events(second, torch.tensor([[1, 1], [0, 0], [0, 1], [0, 0]]))
    some, place = changes.rows([first])
    assert some.tolist() == [0, 1, 4]
    assert place.tolist() == [0, 1, 0, 1, 2, 1, 2, 1]
    assert changes.rows([first, second])[0].tolist() == [0, 1, 4, 5]
    changes.note_events(second, torch.ones(4, 2))
    assert changes.rows([first, second]) is None  # as everything has changed
    assert changes.rows([first, fx.Graph().placeholder("unknown")]) is None


@pytest.mark.parametrize("profile", ["exact", "int8"])
def test_events_count_until_a_sample_leaves(profile: str) -> None:
    snn, x = converted(), images(5)
    options = {"profile": profile, "count_operations": True}
    alone = [Simulator(snn, x[:1], 12, **options).run(x[i : i + 1]) for i in range(5)]
    level = float(torch.stack([run.logits[3].topk(2).values.diff().abs().max() for run in alone]).median())
    run = Simulator(snn, x, 12, exit_rule=Margin(level), **options).run(x)
    assert len(set(run.left.tolist())) > 1
    here = torch.arange(1, 13) <= run.left[:, None]
    for site in snn.sites:
        expected = sum(one.spikes[site] * present for one, present in zip(alone, here, strict=True))
        assert torch.equal(run.spikes[site], expected)
    assert torch.equal(run.sop, sum(one.sop * present for one, present in zip(alone, here, strict=True)))
