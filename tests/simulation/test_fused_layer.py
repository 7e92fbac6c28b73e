"""Fused layers: both ways to compute them give the spikes of the reference."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, converted, inputs, onto_grid
from rheobase import HALF, Margin, convert, simulate
from rheobase.kernels import join_channels
from rheobase.kernels.conv_integrate_fire import second as second_input
from rheobase.network import ZERO, Initial, IntegrateFire, Uniform
from rheobase.simulation import Run, Simulator, fused_layer
from rheobase.simulation.counters import ChunkCounts
from rheobase.simulation.device import DEVICES
from rheobase.simulation.fused_layer import FusedLayer, MaxOfSums
from rheobase.simulation.integrate_fire_layer import IntegrateFireLayer
from rheobase.simulation.profiles import find_profile


class Blocks(nn.Module):
    """One of each thing that the networks on a GPU are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.top = nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(3, 2, 1)
        self.same = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))
        self.down = nn.Conv2d(16, 24, 3, stride=2, padding=1)
        self.wide = nn.Conv2d(24, 24, 3, padding=1)
        self.shortcut = nn.Conv2d(16, 24, 1, stride=2)
        self.pool = nn.AvgPool2d(2)
        self.small = nn.Conv2d(24, 20, 3, padding=1)
        self.hidden, self.head = nn.Linear(80, 33), nn.Linear(33, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.top(self.stem(x).relu())
        x = (self.same[1](self.same[0](x).relu()) + x).relu()
        x = (self.wide(self.down(x).relu()) + self.shortcut(x)).relu()
        x = self.small(self.pool(x)).relu()
        y: Tensor = self.head(self.hidden(x.flatten(1)).relu())
        return y


@pytest.mark.parametrize(
    ("profile", "size", "few", "routine"),
    [
        ("exact", 3, 1 << 18, "triton fused"),
        ("exact", 1, 1 << 18, "triton fused + triton scan"),
        ("fast", 3, 0, "triton fused"),
        ("int8", 3, 0, "triton fused"),
        ("int8", 3, 1 << 18, "triton fused + triton scan"),
    ],
)
def test_the_kernels_of_a_gpu_give_the_spikes_of_the_reference(
    profile: str, size: int, few: int, routine: str, emulate_gpu: Callable[..., None]
) -> None:
    """The whole engine as on a GPU, by Triton's interpreter: sums, strides, pooling, few channels."""
    x = torch.randn(size, 3, 16, 16, generator=torch.Generator().manual_seed(0)).mul(16).round().div(16)
    torch.manual_seed(0)
    snn = onto_grid(convert(Blocks().eval(), "max-norm", x, initial=HALF))
    expected = simulate(snn, x, 3, profile="int8" if profile == "int8" else "exact")
    emulate_gpu(few_neurons=few)
    run = Simulator(snn, x, 3, chunk=2, profile=profile).run(x)
    plan = Simulator(snn, x, 3, profile=profile).plan
    fused = [step.operation for step in plan.steps if isinstance(step.operation, FusedLayer)]
    assert len(fused) == len(snn.sites) - 1
    assert {(layer.shortcut is not None, layer.scale is not None) for layer in fused} == {
        (False, False),
        (True, False),
        (False, True),
    }
    assert any(isinstance(step.operation, MaxOfSums) for step in plan.steps)
    for site in snn.sites:
        assert run.spikes[site].sum() > 0
        assert torch.equal(run.spikes[site], expected.spikes[site]), site
    torch.testing.assert_close(run.logits, expected.logits)
    assert [run.kernels[site] for site in snn.sites] == ["triton scan", *[routine] * 6]


@pytest.mark.parametrize("few", [0, 1 << 18])
@pytest.mark.parametrize("rule", [None, Margin(0.02, after=2)], ids=["all stay", "some leave"])
def test_kernels_count_what_their_neurons_send(
    few: int, rule: Margin | None, emulate_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fused kernels, and scans over many neurons; the spikes of others, and pooled ones, are read again."""
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    snn = convert(Blocks().eval(), "max-norm", x, initial=HALF)
    tallied, count = set[str](), ChunkCounts._tally

    def watch(self: ChunkCounts, name: str, *signal: Any) -> None:
        tallied.add(name)
        count(self, name, *signal)

    def run() -> Run:
        options: dict[str, Any] = {"exit_rule": rule, "count_operations": True}
        return Simulator(snn, x, 5, chunk=2, profile="int8", **options).run(x)

    expected = run()
    assert rule is None or 2 <= expected.left.min() < expected.left.max()
    monkeypatch.setattr(ChunkCounts, "_tally", watch)
    monkeypatch.setattr("rheobase.simulation.integrate_fire_layer._OWN_PIECE", 1)
    emulate_gpu(few_neurons=few)
    found = run()
    scanned = {*snn.sites} if few else {snn.sites[0]}
    assert tallied & {*snn.sites} == (set() if rule is None and not few else scanned)
    assert torch.equal(found.sop, expected.sop)
    for site in snn.sites:
        assert torch.equal(found.spikes[site], expected.spikes[site]), site


def test_a_scan_over_computed_currents_counts(
    emulate_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A linear layer in `fast`, piece by piece: the same numbers as from its spikes."""
    x = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    snn = convert(Blocks().eval(), "max-norm", x, initial=HALF)
    monkeypatch.setattr("rheobase.simulation.integrate_fire_layer._PIECE", 1)
    emulate_gpu(few_neurons=1)

    def run() -> Run:
        return Simulator(snn, x, 5, chunk=3, profile="fast", count_operations=True).run(x)

    found, tallied, count, rows = run(), set[str](), ChunkCounts._tally, ChunkCounts.rows

    def watch(self: ChunkCounts, name: str, *signal: Any) -> None:
        tallied.add(name)
        count(self, name, *signal)

    def refuse(self: ChunkCounts, name: str, traits: Any, scanned: int | None = None) -> Any:
        return rows(self, name, traits) if scanned is None else None

    monkeypatch.setattr(ChunkCounts, "_tally", watch)
    monkeypatch.setattr(ChunkCounts, "rows", refuse)
    expected = run()
    assert tallied & {*snn.sites} == {snn.sites[0], snn.sites[-1]}
    assert torch.equal(found.sop, expected.sop)
    for site in snn.sites:
        assert torch.equal(found.spikes[site], expected.spikes[site]), site
        assert expected.spikes[site].any()


@pytest.mark.parametrize(
    ("pool", "fits"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((3, 2), stride=1, padding=(1, 0)), True),
        (nn.MaxPool2d(5), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.AdaptiveMaxPool2d(2), False),
    ],
    ids=str,
)
def test_every_max_pooling_gives_the_spikes_of_the_reference(
    pool: nn.Module, fits: bool, emulate_gpu: Callable[..., None]
) -> None:
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), pool, nn.Conv2d(16, 16, 1), nn.ReLU(), nn.Flatten())
    snn = convert(model.eval(), "max-norm", x, initial=HALF)
    expected = simulate(snn, x, 5, profile="int8")
    emulate_gpu()
    simulator = Simulator(snn, x, 5, chunk=2, profile="int8")
    assert any(isinstance(step.operation, MaxOfSums) for step in simulator.plan.steps) == fits
    run = simulator.run(x)
    assert run.spikes[snn.sites[1]].sum() > 0
    for site in snn.sites:
        assert torch.equal(run.spikes[site], expected.spikes[site])


def test_currents_first_are_computed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU for few neurons in `fast`."""
    snn, x = onto_grid(converted("IdentitySkip")), inputs(3)
    fused = simulate(snn, x, 7, profile="fast")
    original, lengths = IntegrateFireLayer._torch_currents, set[int]()

    def compute(self: IntegrateFireLayer, spikes_TB: Tensor, *others: Tensor) -> Tensor:
        lengths.add(len(spikes_TB))
        return original(self, spikes_TB, *others)

    monkeypatch.setattr(IntegrateFireLayer, "_torch_currents", compute)
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], few_neurons=1 << 18))
    whole = simulate(snn, x, 7, profile="fast")
    assert lengths == {7}
    assert whole.kernels[snn.sites[1]].startswith("torch conv2d + ")
    monkeypatch.setattr("rheobase.simulation.integrate_fire_layer._PIECE", 2 * 3 * 8 * 8 * 8)
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
    fire = IntegrateFireLayer._fire

    def watch(self: IntegrateFireLayer, *given: Tensor) -> None:
        taken.append(given[0].shape[1])
        fire(self, *given)

    monkeypatch.setattr(IntegrateFireLayer, "_fire", watch)
    monkeypatch.setitem(DEVICES, "cpu", replace(DEVICES["cpu"], few_neurons=1 << 18))
    whole = simulate(snn, x, 7, profile="int8")
    assert set(taken) == {3 * 7}
    chunks = Simulator(snn, x, 7, profile="int8", chunk=3).run(x)
    monkeypatch.setattr("rheobase.simulation.integrate_fire_layer._OWN_PIECE", 2 * 3 * 8 * 8 * 8)
    pieces = simulate(snn, x, 7, profile="int8")
    assert min(taken) < 3 * 7
    for run in (whole, chunks, pieces):
        assert torch.equal(run.logits, fused.logits)
        for site in snn.sites:
            assert torch.equal(run.spikes[site], fused.spikes[site])


@pytest.mark.parametrize("profile", ["exact", "fast", "int8"])
@pytest.mark.parametrize("threshold", [torch.tensor(0.7), torch.full((8,), 0.7), torch.arange(1, 9) / 8])
@pytest.mark.parametrize("start", [ZERO, HALF, Uniform(0, 1)], ids=str)
def test_membranes_start_at_their_potential(profile: str, threshold: Tensor, start: Initial) -> None:
    torch.manual_seed(0)
    neuron, arithmetic = IntegrateFire(threshold, initial=start), find_profile(profile, torch.device("cpu"))
    image, pixel, features = (torch.Size(shape) for shape in ((2, 8, 3, 5), (2, 8, 1, 1), (2, 8)))
    connections = {image: nn.Conv2d(4, 8, 1), pixel: nn.Conv2d(4, 8, 1), features: nn.Linear(4, 8)}
    for shape, synapse in connections.items():
        layer = IntegrateFireLayer(synapse, neuron, 1.0, arithmetic, largest=1)
        membrane = layer.start(shape, 0, 0)
        assert torch.equal(membrane, layer._potential(shape, 0, 0).expand(shape))
        assert membrane.movedim(1, -1).is_contiguous()
        alike = (profile != "int8" and len(threshold.unique()) == 1) or start is ZERO
        assert (layer.level is not None) == (alike and start in (ZERO, HALF))


class Shortcut(nn.Module):
    """A block whose shortcut a GPU reads where it is."""

    def __init__(self, kernel: int, stride: int) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 16, 1), nn.Conv2d(16, 64, 3, stride=stride, padding=1)
        self.wide, self.beside = nn.Conv2d(64, 8, kernel, padding=kernel // 2), nn.Conv2d(16, 8, 1, stride)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).relu()
        x = (self.wide(self.down(x).relu()) + self.beside(x)).relu()
        y: Tensor = self.head(x.mean((2, 3)))
        return y


@pytest.mark.parametrize(("kernel", "stride", "size"), [(1, 1, 4), (3, 2, 8), (3, 2, 7)])
@pytest.mark.parametrize("few", [0, 1 << 18])
def test_a_shortcut_is_read_where_it_is(
    kernel: int,
    stride: int,
    size: int,
    few: int,
    emulate_gpu: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless currents are computed first; then, and on a CPU, memory for a copy is planned."""
    x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)).mul(16).round().div(16)
    torch.manual_seed(0)
    snn = onto_grid(convert(Shortcut(kernel, stride).eval(), "max-norm", x, initial=HALF))
    expected = simulate(snn, x, 3)
    site, copies = snn.sites[2], list[Tensor]()

    def plan_scratch(simulator: Simulator) -> int:
        return next(step.scratch for step in simulator.plan.steps if step.name == site)

    assert plan_scratch(Simulator(snn, x, 3, profile="fast")) == 80 * (-(-size // stride)) ** 2

    def watch(first_TB: Tensor, second: Tensor) -> Tensor:
        copies.append(second)
        return join_channels(first_TB, second)

    for module in (second_input, fused_layer):
        monkeypatch.setattr(module, "join_channels", watch)
    emulate_gpu(few_neurons=few)
    simulator = Simulator(snn, x, 3, chunk=2, profile="fast" if few == 0 else "int8")
    run = simulator.run(x)
    assert bool(copies) == (few > 0)
    if few == 0:
        assert plan_scratch(simulator) == 0
        for name in snn.sites:
            assert run.spikes[name].sum() > 0
            assert torch.equal(run.spikes[name], expected.spikes[name]), name
