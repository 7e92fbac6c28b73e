"""The simulator: requests, memory and what surrounds a call."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, converted, inputs
from rheobase import HALF, Constant, Margin, convert, prepare, simulate
from rheobase.simulation import Probe, Simulator
from rheobase.simulation.engine import ChunkedRun
from rheobase.simulation.profiles import PROFILES


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


def test_a_simulator_wants_the_shape_it_was_made_for() -> None:
    snn = convert(prepare(build("Plain"), "opi"), "opi")
    assert snn.input_shape is None
    simulator = Simulator(snn, inputs(2), 4)
    with pytest.raises(ValueError, match=r"\(3, 16, 16\).*\(3, 8, 8\)"):
        simulator.run(torch.zeros(2, 3, 16, 16))


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.filterwarnings("ignore:site .* never activated")
def test_long_runs_approach_the_rate_twin(name: str, per_channel: bool) -> None:
    """The mean output over T steps differs from the limit by O(1/T)."""
    x = inputs(4)
    snn = convert(build(name), "max-norm", torch.cat([x, inputs(128, seed=5)]), per_channel=per_channel)
    limit = snn.limit(x)
    run = simulate(snn, x, 1024, at=[64, 1024])
    early, late = ((logits - limit).abs().max() for logits in run.logits)
    scale = limit.abs().max()
    assert late <= 0.05 * scale
    assert late < early or early <= 0.02 * scale


def test_dead_sites_stay_silent_and_the_rest_is_right() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    with torch.no_grad():
        model[0].weight[1:3] = 0
        model[0].bias[1:3] = -1
    x = inputs(8)
    with pytest.warns(UserWarning, match=r"'1'.*50%"):
        snn = convert(model, "max-norm", x, per_channel=True, initial=Constant(1.0))
    assert snn.dead == {"1": 0.5}
    run = simulate(snn, x, 256, at=[256])
    torch.testing.assert_close(run.logits[0], model(x), atol=0.02, rtol=0.02)
    for moved in (copy.deepcopy(snn).double(), copy.deepcopy(snn).half().float()):
        assert moved.dead == snn.dead
        watched: list[Tensor] = []
        simulate(
            moved,
            x,
            4,
            probe=Probe(None, lambda _, spikes, before, seen=watched: seen.append(spikes[:, :, 1:3])),
        )
        assert not torch.cat(watched).any()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"steps": 0}, ValueError, "at least 1"),
        ({"steps": 2.5}, ValueError, "2.5"),
        ({"at": [9]}, ValueError, "must lie in 1…4"),
        ({"at": [2.5]}, ValueError, "must lie in 1…4"),
        ({"at": []}, ValueError, "must lie in 1…4"),
        ({"chunk": 0}, ValueError, "chunk.*0"),
        ({"chunk": -3}, ValueError, "chunk.*-3"),
        ({"x": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, TypeError, "normalise images"),
        ({"x": torch.zeros(2, 3, 8, 8).to_sparse()}, TypeError, r"dense.*sparse_coo.*to_dense"),
        ({"x": torch.zeros(2, 3, 9, 9)}, ValueError, r"expects \(3, 8, 8\)"),
        ({"x": torch.full((2, 3, 8, 8), torch.nan)}, ValueError, "NaN or infinite"),
        ({"x": torch.full((2, 3, 8, 8), 1e300, dtype=torch.float64)}, ValueError, "infinite values in"),
        ({"x": torch.zeros(0, 3, 8, 8)}, ValueError, "empty"),
        ({"probe": Probe(["nobody"], print)}, ValueError, "'nobody'.* it has "),
    ],
)
def test_bad_requests(arguments, error, message) -> None:
    snn = convert(build("Plain"), "max-norm", inputs())
    with pytest.raises(error, match=message):
        Simulator(**{"snn": snn, "x": inputs(2), "steps": 4, **arguments})


def test_a_network_in_half_precision_is_refused() -> None:
    snn = convert(build("Plain"), "max-norm", inputs()).half()
    with pytest.raises(ValueError, match=r"torch.float16.*snn.float\(\)"):
        simulate(snn, inputs(2), 4)


SURROUNDINGS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.float16),
    "default device": lambda: torch.device("meta"),
    "deterministic": deterministic_algorithms,
    "inference mode": torch.inference_mode,
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("around", SURROUNDINGS)
def test_what_is_set_around_a_call_changes_nothing(around: str, profile: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32)
    )
    model.extend([nn.ReLU(), nn.Linear(32, 5)])
    snn, x = convert(model, "max-norm", inputs(16), initial=HALF), inputs(6)
    alone = simulate(snn, x, 8, profile=profile)
    with SURROUNDINGS[around]():
        there = simulate(snn, x, 8, profile=profile)
    assert torch.equal(there.logits, alone.logits)
    assert all(torch.equal(there.spikes[site], alone.spikes[site]) for site in snn.sites)


def test_results_can_be_changed_and_trained_on() -> None:
    run = simulate(convert(build("Plain"), "max-norm", inputs(16)), inputs(3), 4)
    temperature = torch.ones((), requires_grad=True)
    (run.logits * temperature).sum().backward()
    assert temperature.grad == run.logits.sum()
    assert torch.equal(run.logits.clone().add_(1), run.logits.add_(1))
    assert (run.left.sub_(1) == 3).all()


def test_a_wrong_shape_without_a_known_one() -> None:
    snn = convert(prepare(build("Plain"), "opi"), "opi")
    with pytest.raises(ValueError, match=r"\(1, 8, 8\)"):
        simulate(snn, torch.zeros(2, 1, 8, 8), 4)


@pytest.mark.parametrize("value", [True, 0, -1, 4.0, "4", None])
def test_steps_and_memory_are_integers(value: object) -> None:
    snn, x = converted("Plain"), inputs(2)
    for name in ("steps", "memory") if value is not None else ("steps",):
        with pytest.raises(ValueError, match=f"{name} must be an integer"):
            simulate(snn, x, **{"steps": 4, name: value})  # type: ignore[arg-type]
    assert torch.equal(simulate(snn, x, np.int64(4)).logits, simulate(snn, x, 4).logits)  # type: ignore[arg-type]


def test_too_few_steps_for_the_delay_of_a_network() -> None:
    snn, x = convert(build("Plain"), "max-norm", inputs(), then=["srp"]), inputs(2)
    assert snn.delay > 0
    with pytest.raises(
        ValueError, match=f"first {snn.delay} steps .*at least {snn.delay + 1} .*got {snn.delay}"
    ):
        simulate(snn, x, snn.delay)
    with pytest.raises(ValueError, match=r"delay.*got 9"):
        simulate(snn, x, 8, delay=9)
