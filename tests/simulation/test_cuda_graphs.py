"""CUDA graphs: captured runs are the runs."""

import pytest
import torch

from families import build, converted, inputs
from rheobase import Uniform, convert, simulate
from rheobase.network.codings import Poisson
from rheobase.simulation import Simulator


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


def test_a_change_of_the_network_is_noticed_while_a_recording_is_replayed(recorded: list[int]) -> None:
    snn, x = converted("Plain"), inputs(4)
    simulate(snn, x, 8)
    (simulator,) = vars(snn)["_prepared"].simulators.values()
    simulator.graph = True
    before = [simulate(snn, x, 8) for _ in range(3)][-1]
    assert list(vars(snn)["_prepared"].simulators.values()) == [simulator]
    assert simulator.replays(x)
    neuron = snn.neuron(snn.sites[1])
    neuron.retune(neuron.threshold * 2, neuron.amplitude)
    after = simulate(snn, x, 8)
    assert torch.equal(after.logits, Simulator(snn, x, 8).run(x).logits)
    assert not torch.equal(after.logits, before.logits)
    assert simulator not in vars(snn)["_prepared"].simulators.values()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bad_inputs_of_a_recorded_run_are_refused(recorded: list[int], value: float) -> None:
    snn, x = converted("IdentitySkip"), inputs(4)
    simulator = Simulator(snn, x, 8)
    simulator.graph = True
    first = [simulator.run(x) for _ in range(2)][1]
    assert len(recorded) == 1
    bad = x.clone()
    bad[3, 0, 1, 1] = value
    with pytest.raises(ValueError, match=r"NaN or infinite values in torch\.float32"):
        simulator.run(bad)
    assert torch.equal(simulator.run(x).logits, first.logits)


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


@pytest.mark.parametrize("profile", ["int8", "exact"])
def test_recorded_runs_of_the_sum_code_are_the_runs(recorded: list[int], profile: str) -> None:
    snn = convert(build("IdentitySkip"), "sigma-delta", inputs(16, seed=5))
    simulator = Simulator(snn, inputs(4), 8, profile=profile)
    assert simulator._is_repeatable()
    simulator.graph = True
    kept = []
    for seed in range(4):
        x = inputs(4, seed=seed)
        kept.append((simulate(snn, x, 8, profile=profile), simulator.run(x)))
    assert len(recorded) == 1
    kept_by_graph = simulator.recordings._kept[4].result
    for tensor in (kept_by_graph.logits, kept_by_graph.last_event, *kept_by_graph.spikes.values()):
        tensor.zero_()  # as the next replay would overwrite it
    for once, again in kept:
        assert torch.equal(again.logits, once.logits)
        assert torch.equal(again.last_event, once.last_event)
        assert all(torch.equal(again.spikes[s], once.spikes[s]) for s in snn.sites)
    longer = Simulator(snn, inputs(4), 30, profile=profile)
    longer.graph = True
    for _ in range(3):
        longer.run(inputs(4))
    assert len(recorded) == 1  # as samples leave between chunks
