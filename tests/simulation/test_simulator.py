"""Simulation: one result, however time and batch are cut."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from families import FAMILIES, build, inputs
from rheobase import HALF, ZERO, Constant, Gaussian, Margin, Uniform, convert, evaluate, prepare, simulate
from rheobase.network.codings import Coding
from rheobase.network.neurons import IntegrateFire
from rheobase.network.operations import Accumulating, MaxPool
from rheobase.network.snn import SNN
from rheobase.simulation import Probe, Simulator
from rheobase.simulation.batch_invariant import _in_blocks, memory_format, weigh
from rheobase.simulation.plan import plan_calls
from rheobase.simulation.profiles import PROFILES


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def step_by_step(snn: SNN, x: Tensor, steps: int) -> tuple[Tensor, dict[str, Tensor]]:
    """The plainest simulation: every node at every step, in a Python loop, state in a dictionary."""
    graph, state, outputs = snn.module.graph, {}, []
    spikes: dict[str, list[float]] = {site: [] for site in snn.sites}
    for t in range(steps):
        values = {}
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = x
            elif node.op == "output":
                outputs.append(values[node.args[0]])
            else:
                module = snn.module.get_submodule(node.target)
                args = [values[a] for a in node.args]
                if isinstance(module, IntegrateFire):
                    if node not in state:
                        state[node] = module.start(args[0].shape, snn.sites.index(node.target), 0)
                    theta = module.threshold
                    theta = theta.view(-1, *[1] * (x.dim() - 2)) if theta.dim() else theta
                    u = state[node] + args[0]
                    fired = u >= theta
                    state[node] = torch.where(fired, u - theta, u)
                    values[node] = fired.to(x.dtype)
                    spikes[node.target].append(fired.sum().item())
                elif isinstance(module, Accumulating):
                    sums = [
                        a + s for a, s in zip(args, state.get(node, ([0.0] * len(args),))[0], strict=True)
                    ]
                    total = module.accumulate(tuple(sums), torch.full((len(x),), t + 1))
                    values[node] = total - state[node][1] if node in state else total
                    state[node] = (sums, total)
                else:
                    values[node] = module(*args)
    means = torch.stack(outputs).double().cumsum(0) / torch.arange(1, steps + 1).view(-1, 1, 1)
    return means, {site: torch.tensor(counts) for site, counts in spikes.items()}


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"SqueezeExcite"}))
def test_folded_time_equals_the_step_loop(name: str) -> None:
    x = inputs(3)
    snn = convert(build(name), "max-norm", inputs(16, seed=5), initial=HALF).double()
    expected, spikes = step_by_step(snn, x.double(), 12)
    run = Simulator(snn, x.double(), 12, chunk=5).run(x.double())
    assert all(torch.equal(run.spikes[s], spikes[s].long()) for s in snn.sites)
    torch.testing.assert_close(run.logits, expected.to(run.logits.dtype))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("initial", [HALF, Uniform()], ids=str)
def test_chunks_and_batches_change_nothing(name: str, initial) -> None:
    """Single precision, weights as they come: bit for bit the same."""
    x = inputs(5)
    snn = convert(build(name), "max-norm", inputs(16, seed=5), initial=initial)
    whole = simulate(snn, x, 9)
    for chunk in (1, 2, 4, 9):
        part = Simulator(snn, x, 9, chunk=chunk).run(x)
        assert torch.equal(part.logits, whole.logits)
        assert all(torch.equal(part.spikes[s], whole.spikes[s]) for s in snn.sites)
    singles = [Simulator(snn, x[i : i + 1], 9, chunk=1 + i).run(x[i : i + 1], i) for i in range(5)]
    assert torch.equal(torch.cat([s.logits for s in singles], 1), whole.logits)
    plan = plan_calls(snn, x)
    tight = simulate(snn, x, 9, memory=2 * (plan.fixed_bytes + plan.moving_bytes))
    assert tight.chunk != whole.chunk
    assert torch.equal(tight.logits, whole.logits)


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


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore:site .* never activated")
def test_spikes_are_zero_or_one(name: str) -> None:
    """Amplitudes are folded into weights; max-pooling keeps spikes 0/1 too."""
    seen: list[str] = []

    def probe(node: str, signal: Tensor, before: int) -> None:
        assert ((signal == 0) | (signal == 1)).all()
        seen.append(node)

    snn = convert(build(name), "max-norm", inputs(128), per_channel=True)
    pools = [name for name, m in snn.module.named_modules() if isinstance(m, MaxPool)]
    simulate(snn, inputs(3), 6, probe=Probe([*snn.sites, *pools], probe))
    assert set(seen) == {*snn.sites, *pools}


def test_accumulated_maximum_is_the_maximum_of_sums() -> None:
    snn = convert(build("MaxPooled"), "max-norm", inputs(16))
    pool = "features.2"
    collected: dict[str, list[Tensor]] = {"features.1": [], pool: []}
    Simulator(
        snn,
        inputs(3),
        20,
        chunk=7,
        probe=Probe(list(collected), lambda n, s, _: collected[n].append(s.clone())),
    ).run(inputs(3))
    before, after = (torch.cat(c).cumsum(0) for c in collected.values())
    assert ((torch.cat(collected[pool]) == 0) | (torch.cat(collected[pool]) == 1)).all()
    assert torch.equal(nn.functional.max_pool2d(before.flatten(0, 1), 2), after.flatten(0, 1))


def test_a_node_can_be_read_out() -> None:
    x = inputs(3)
    snn = convert(build("SharedReLU"), "max-norm", x)
    site = snn.sites[1]
    mean = Simulator(snn, x, 16, read=site, at=[16]).run(x).logits[0]
    counted = torch.zeros_like(mean)
    simulate(snn, x, 16, probe=Probe([site], lambda n, s, _: counted.add_(s.sum(0))))
    assert torch.equal(mean * 16, counted)
    with pytest.raises(ValueError, match="no node 'nowhere'"):
        Simulator(snn, x, 4, read="nowhere").run(x)


def test_memory_is_planned_and_does_not_grow_with_steps() -> None:
    x = inputs(4)
    snn = convert(build("Plain"), "max-norm", x)
    plan = plan_calls(snn, x)
    one = plan.fixed_bytes + plan.moving_bytes
    used = {}
    for steps in (1, 8, 512, 4096):
        for memory in (one, 4 * one, 64 * one):
            samples, chunk = plan.fit(4, steps, memory)
            used[steps, memory] = samples * (plan.fixed_bytes + chunk * plan.moving_bytes)
            assert 1 <= samples <= 4
            assert 1 <= chunk <= steps
            assert used[steps, memory] <= memory
    assert used[4096, 64 * one] <= 1.05 * used[512, 64 * one]
    with pytest.raises(ValueError, match="one step of one sample needs"):
        simulate(snn, x, 4, memory=one - 1)


def test_still_work_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    snn = convert(build("Plain"), "max-norm", inputs())
    calls: list[nn.Module] = []

    def counting(operation: nn.Module, x: Tensor) -> Tensor:
        calls.append(operation)
        return weigh(operation, x)

    monkeypatch.setattr("rheobase.simulation.engine.weigh", counting)
    Simulator(snn, inputs(), 8, chunk=2).run(inputs())
    first, second = snn.module.get_submodule("0"), snn.module.get_submodule("4")
    assert calls.count(first) == 1
    assert calls.count(second) == 4


@settings(max_examples=60, deadline=None)
@given(
    z=st.integers(0, 64), v0=st.integers(0, 63), theta=st.sampled_from([0.5, 1.0, 4.0]), T=st.integers(1, 70)
)
def test_closed_form(z: int, v0: int, theta: float, T: int) -> None:
    """Constant current z in [0, θ], start v(0) in [0, θ): count = clip(floor((T·z + v(0))/θ), 0, T)."""
    neuron = IntegrateFire(torch.tensor(theta, dtype=torch.float64), initial=Constant(v0 / 64))
    membrane = neuron.start(torch.Size((1, 1)), 0, 0)
    neuron.amplitude = torch.ones((), dtype=torch.float64)
    spikes = neuron.advance(torch.full((1, 1), z / 64 * theta, dtype=torch.float64), membrane, T)
    assert spikes.sum().item() == min(max((T * z + v0) // 64, 0), T)


def test_strict_comparison_waits_for_more() -> None:
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
    x = torch.ones(1, 1)
    reaches = simulate(convert(model, "max-norm", x, fire_above=False), x, 4)
    exceeds = simulate(convert(model, "max-norm", x, fire_above=True), x, 4)
    assert reaches.spikes["1"].tolist() == [1, 1, 1, 1]
    assert exceeds.spikes["1"].tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize(
    "initial", [ZERO, HALF, Constant(0.3), Uniform(), Gaussian(), Gaussian(0, 1)], ids=str
)
def test_starts(initial) -> None:
    neuron = IntegrateFire(torch.tensor([1.0, 2.0, 0.0]), initial=initial)
    shape = torch.Size((64, 3, 16, 16))
    v = neuron.start(shape, 1, 100)
    assert torch.equal(v, neuron.start(shape, 1, 100))
    assert torch.equal(v[10:20], neuron.start(torch.Size((10, 3, 16, 16)), 1, 110))
    assert (v[:, 2] == 0).all()  # dead
    if isinstance(initial, Constant):
        assert torch.equal(v[:, 1], 2 * v[:, 0])
    else:
        assert not torch.equal(v, neuron.start(shape, 2, 100))
        expected = 0.5 if str(initial) != "gaussian(0, 1)" else 0.0
        assert abs(v[:, 0].mean().item() - expected) < 0.02
        assert abs(v[:, 0].std().item() - (12**-0.5 if expected else 1)) < 0.02


def test_dead_sites_stay_silent_and_the_rest_is_right() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 5))
    with torch.no_grad():
        model[0].weight[1:3] = 0
        model[0].bias[1:3] = -1
    x = inputs(8)
    with pytest.warns(UserWarning, match="site '1': 50% of its channels never activated"):
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


class Reversed(Coding):
    """A coding that changes over time: the input at odd steps, its negative at even ones."""

    @property
    def constant(self) -> bool:
        return False

    def encode(self, x: Tensor, first_step: int, steps: int, first_sample: int) -> Tensor:
        signs = torch.tensor([1.0 if (first_step + t) % 2 == 0 else -1.0 for t in range(steps)])
        return signs.view(-1, *[1] * x.dim()) * x


def test_a_coding_that_moves() -> None:
    x = inputs(3)
    snn = convert(build("SharedReLU"), "max-norm", inputs(16), coding=Reversed())
    whole = simulate(snn, x, 10)
    assert torch.equal(Simulator(snn, x, 10, chunk=3).run(x).logits, whole.logits)
    still = simulate(convert(build("SharedReLU"), "max-norm", inputs(16)), x, 10)
    assert not torch.equal(whole.logits, still.logits)


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


class Sliced(nn.Module):
    """Two sites read one current, and the read-out a part of the spikes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        current = self.second(self.first(x).relu())
        return self.last((self.third(current.relu()) + current).relu()[:, :4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks_of_one_step_change_nothing_in_any_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    snn = convert(Sliced().eval(), "max-norm", torch.randn(16, 6), initial="half").to(dtype)
    x = torch.randn(4, 6, dtype=dtype)
    whole, single = (Simulator(snn, x, 9, chunk=chunk).run(x) for chunk in (9, 1))
    assert whole.logits.dtype == dtype
    assert torch.equal(single.logits, whole.logits)
    for site in snn.sites:
        assert torch.equal(single.spikes[site], whole.spikes[site])


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


def test_parts_of_a_batch_are_of_one_size() -> None:
    x = inputs(4)
    plan = plan_calls(convert(build("Plain"), "max-norm", x), x)
    for batch in (7, 100, 512):
        for memory in (2**18, 2**20, 2**22):
            samples, chunk = plan.fit(batch, 64, memory)
            parts = -(-batch // samples)
            assert batch - (parts - 1) * samples > samples - parts
            assert samples * (plan.fixed_bytes + chunk * plan.moving_bytes) <= memory


def test_blocks_of_rows_are_the_rows() -> None:
    """As on a GPU, where everything is weighed in blocks of one height and one memory format."""
    conv, seen = nn.Conv2d(3, 4, 3, padding=1), list[Tensor]()
    conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    for count in (1, 5, 8, 16, 21):
        for form in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(count, 3, 6, 6).contiguous(memory_format=form)
            seen.clear()
            with torch.no_grad():
                got = _in_blocks(conv, x, 8)
                assert {(len(block), memory_format(block)) for block in seen} == {(8, form)}
                torch.testing.assert_close(got, conv(x))
