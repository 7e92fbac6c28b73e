"""What a simulation prepared is used again, for the same request and an unchanged network only."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from families import converted, inputs
from rheobase import HALF, ZERO, Margin, evaluate, save, simulate
from rheobase.network.codings import Poisson
from rheobase.network.snn import SNN
from rheobase.network.starts import Potential
from rheobase.simulation import Probe, Run, Simulator, borrow_simulator, prepared


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of steps of the simulators made so far."""
    steps: list[int] = []

    class Counted(Simulator):
        def __init__(self, snn: SNN, x: torch.Tensor, T: int, **options: object) -> None:
            steps.append(T)
            super().__init__(snn, x, T, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(prepared, "Simulator", Counted)
    return steps


def same(a: Run, b: Run) -> bool:
    return torch.equal(a.logits, b.logits) and all(torch.equal(a.spikes[s], b.spikes[s]) for s in a.spikes)


@pytest.mark.parametrize("profile", ["exact", "fast", "int8"])
def test_the_same_request_is_prepared_once(profile: str, made: list[int]) -> None:
    snn = converted("IdentitySkip")
    for seed, size in ((1, 4), (2, 3), (3, 4)):
        x = inputs(size, seed=seed)
        assert same(simulate(snn, x, 6, profile=profile), Simulator(snn, x, 6, profile=profile).run(x))
    assert made == [6]
    simulate(snn, x, 6, profile=profile, at=[2, 6])
    simulate(snn, x, 7, profile=profile)
    simulate(snn, x, 6, profile=profile, exit_rule=Margin(0.5))
    assert made == [6, 6, 7, 6]
    labelled = x, torch.zeros(4, dtype=torch.int64)
    results = [evaluate(snn, labelled, 6, profile=profile, progress=False) for _ in range(2)]
    assert results[0] == results[1]
    assert made == [6, 6, 7, 6, 6]


def scale_in_place(snn: SNN) -> None:
    with torch.no_grad():
        next(snn.parameters()).mul_(0.5)


def replace_data(snn: SNN) -> None:
    parameter = next(snn.parameters())
    parameter.data = parameter.data * 0.5


def retune(snn: SNN) -> None:
    neuron = snn.neuron(snn.sites[1])
    neuron.retune(neuron.threshold * 2, neuron.amplitude)


def restart(snn: SNN) -> None:
    for neuron in snn.neurons.values():
        neuron.initial = ZERO


def recode(snn: SNN) -> None:
    snn.coding = Poisson()


def replace_module(snn: SNN) -> None:
    name, conv = next((n, m) for n, m in snn.module.named_modules() if isinstance(m, nn.Conv2d))
    other = copy.deepcopy(conv)
    nn.init.zeros_(other.weight)
    snn.module.set_submodule(name, other)


def step_of_an_optimiser(snn: SNN) -> None:
    parameters = [p.requires_grad_() for p in snn.parameters()]
    sum(p.square().sum() for p in parameters).backward()  # type: ignore[union-attr]
    torch.optim.SGD(parameters, 0.25).step()


def change_to_double(snn: SNN) -> None:
    snn.double()


CHANGES = [
    scale_in_place, replace_data, retune, restart, recode, replace_module, step_of_an_optimiser,
    change_to_double,
]  # fmt: skip


@pytest.mark.parametrize("profile", ["exact", "int8"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_network_is_noticed(change: Callable[[SNN], None], profile: str) -> None:
    snn, x = converted("Plain", initial=HALF), inputs(4).tanh()
    before = simulate(snn, x, 6, profile=profile)
    change(snn)
    after = simulate(snn, x, 6, profile=profile)
    x = x.to(snn.dtype)
    assert same(after, Simulator(copy.deepcopy(snn), x, 6, profile=profile).run(x))
    assert change is change_to_double or not same(after, before)


def test_a_start_that_holds_a_tensor_is_watched() -> None:
    snn, x = converted("Plain"), inputs(4)
    neuron = snn.neuron(snn.sites[0])
    neuron.initial = Potential(neuron.threshold * 0.5)
    before = simulate(snn, x, 6, profile="int8")
    neuron.initial.values.mul_(-1)
    after = simulate(snn, x, 6, profile="int8")
    assert same(after, Simulator(snn, x, 6, profile="int8").run(x))
    assert not same(after, before)


def test_copies_files_and_pickles_have_none(made: list[int], tmp_path: Path) -> None:
    snn, x = converted("Plain"), inputs(4)
    save(snn, tmp_path / "before.safetensors")
    run = simulate(snn, x, 6)
    save(snn, tmp_path / "after.safetensors")
    before, after = ((tmp_path / f"{name}.safetensors").read_bytes() for name in ("before", "after"))
    assert after == before
    twin = copy.deepcopy(snn)
    assert vars(twin)["_prepared"].simulators == {}
    assert len(vars(snn)["_prepared"].simulators) == 1
    assert pickle.loads(pickle.dumps(vars(snn)["_prepared"])).simulators == {}
    scale_in_place(twin)
    assert not same(simulate(twin, x, 6), run)
    assert same(simulate(snn, x, 6), run)
    assert made == [6, 6]


def test_few_are_kept_and_they_go_with_the_network() -> None:
    snn, x = converted("Plain"), inputs(2)
    for steps in range(1, 10):
        simulate(snn, x, steps)
    simulators = vars(snn)["_prepared"].simulators
    assert [s.steps for s in simulators.values()] == [6, 7, 8, 9]
    gone = weakref.ref(next(iter(simulators.values())))
    del snn, simulators
    gc.collect()
    assert gone() is None


def test_nobody_shares_a_simulator_that_runs() -> None:
    snn, x = converted("Plain"), inputs(2)
    with borrow_simulator(snn, x, 3) as first, borrow_simulator(snn, x, 3) as second:
        assert first is not second
    batches = [inputs(4, seed=seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda x: simulate(snn, x, 5, profile="int8"), batches))
    for x, run in zip(batches, runs, strict=True):
        assert same(run, Simulator(snn, x, 5, profile="int8").run(x))


def test_a_network_that_changes_during_a_run_keeps_nothing_old() -> None:
    snn, x = converted("Plain"), inputs(4)
    with borrow_simulator(snn, x, 6, profile="int8") as simulator:
        simulator.run(x)
        scale_in_place(snn)
        simulate(snn, x, 5)  # which notices the change
    with borrow_simulator(snn, x, 6, profile="int8") as other:
        assert other is not simulator
        assert same(other.run(x), Simulator(snn, x, 6, profile="int8").run(x))


def test_what_cannot_be_kept_is_not(made: list[int]) -> None:
    snn, x = converted("Plain"), inputs(2)
    for _ in range(2):
        simulate(snn, x, 3, probe=Probe(None, lambda *seen: None))
    assert made == [3, 3]
    with torch.inference_mode():
        frozen = copy.deepcopy(snn)
    for _ in range(2):
        assert same(simulate(frozen, x, 3), simulate(snn, x, 3))
    assert made == [3, 3, 3, 3, 3]
    with pytest.raises(ValueError, match="NaN"):
        simulate(snn, x * float("nan"), 4)
    assert [s.steps for s in vars(snn)["_prepared"].simulators.values()] == [3]
    with pytest.raises(ValueError, match="at="):
        simulate(snn, x, 4, at=[5])
    with pytest.raises(TypeError, match=r"at=\[2\]"):
        simulate(snn, x, 4, at=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="floating-point"):
        simulate(snn, [0.0], 4)  # type: ignore[arg-type]
