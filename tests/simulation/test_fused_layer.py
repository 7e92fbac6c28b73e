"""Fused layers: both ways to compute them give the spikes of the reference."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, converted, inputs, onto_grid
from rheobase import HALF, convert, simulate
from rheobase.simulation import Simulator
from rheobase.simulation.device import DEVICES
from rheobase.simulation.fused_layer import FusedLayer, MaxOfSums
from rheobase.simulation.integrate_fire_layer import IntegrateFireLayer


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
