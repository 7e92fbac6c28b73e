"""Fusion: which calls become one layer."""

from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, converted, inputs, onto_grid
from rheobase import HALF, convert, simulate
from rheobase.network.codings import Poisson
from rheobase.network.snn import SNN
from rheobase.simulation import Probe, Simulator, parts
from rheobase.simulation.engine import ChunkedRun
from rheobase.simulation.fused_layer import FusedLayer
from rheobase.simulation.fusion import fuse
from rheobase.simulation.plan import mark_tail, plan_calls
from rheobase.simulation.profiles import find_profile
from rheobase.training import models

CPU = torch.device("cpu")


def layers(snn: SNN, profile: str = "int8") -> list[FusedLayer]:
    plan = fuse(mark_tail(plan_calls(snn, inputs(2)), ()), find_profile(profile, CPU))
    return [step.operation for step in plan.steps if isinstance(step.operation, FusedLayer)]


def test_the_first_site_and_grouped_connections_stay_apart() -> None:
    snn = converted("Plain")
    assert len(layers(snn)) == len(snn.sites) - 1
    grouped = converted("Depthwise")
    assert len(layers(grouped)) < len(grouped.sites) - 1


@pytest.mark.parametrize(("machine", "fused"), [("x86_64", True), ("aarch64", False)])
def test_exact_fuses_convolutions_only_where_the_order_of_sums_is_known(machine: str, fused: bool) -> None:
    with patch("platform.machine", return_value=machine):
        assert bool(layers(converted("IdentitySkip"), "exact")) == fused
        assert layers(converted("IdentitySkip"), "int8")


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


def test_a_shortcut_with_more_weights_than_the_convolution_is_part_of_it() -> None:
    class Bottleneck(nn.Module):
        """The end of a block that halves the image: the shortcut is the larger connection, and strided."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, 2, padding=1)
            self.end, self.shortcut = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 1, stride=2)
            self.last = nn.Linear(16 * 16, 5)

        def forward(self, x: Tensor) -> Tensor:
            early = self.first(x).relu()
            late = self.end(self.middle(early).relu()) + self.shortcut(early)
            return self.last(late.relu().flatten(1))

    torch.manual_seed(0)
    snn = onto_grid(convert(Bottleneck(), "max-norm", inputs(16), initial=HALF))
    assert [layer.shortcut is not None for layer in layers(snn)] == [False, True]
    exact, fast = (simulate(snn, inputs(3), 6, profile=profile) for profile in ("exact", "fast"))
    assert all(torch.equal(fast.spikes[site], exact.spikes[site]) for site in snn.sites)


def test_a_watched_current_is_not_fused_away() -> None:
    snn, x = converted("Plain"), inputs(2)
    source = snn.source(snn.sites[1])
    seen: list[Tensor] = []
    run = simulate(snn, x, 5, probe=Probe([source], lambda n, s, _: seen.append(s.clone())), profile="int8")
    assert seen
    assert seen[0].is_floating_point()
    assert run.spikes.keys() == set(snn.sites)


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


@pytest.mark.parametrize("profile", ["fast", "int8"])
def test_inputs_in_spikes_and_neurons_of_other_kinds(profile: str) -> None:
    x = inputs(4)
    poisson = convert(build("Plain"), "max-norm", inputs(16, seed=5), coding=Poisson(scale=8.0))
    exact, other = (simulate(poisson, x, 64, at=[64], profile=p).logits for p in ("exact", profile))
    assert (other - exact).abs().max() <= 0.1 * exact.abs().max()
    few = convert(build("Plain"), "few-spikes", inputs(32))
    exact, other = (simulate(few, x, 10, at=[10], profile=p).logits for p in ("exact", profile))
    assert torch.equal(other, exact)


@pytest.mark.parametrize("family", ["resnet20", "thirds", *FAMILIES])
def test_exact_layers_on_a_cpu_give_the_bits_of_their_calls(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of membranes: hardly a spike depends on the last one."""
    if family in FAMILIES:
        snn, x = converted(family), inputs(4)
    else:
        layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AvgPool2d(3), nn.Conv2d(16, 16, 3), nn.ReLU()]
        thirds = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 5))
        x = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
        model = thirds if family == "thirds" else models.build("resnet20", 10)
        snn = convert(model.eval(), "max-norm", x, initial=HALF)
    seen: dict[tuple[bool, int, str], Tensor] = {}

    class Seen(ChunkedRun):
        def run(self) -> tuple[Tensor, Tensor, Tensor]:
            found = super().run()
            for node, membrane in self.membranes.items():
                seen[fuses, self.first_sample, str(node.target)] = membrane
            return found

    monkeypatch.setattr(parts, "ChunkedRun", Seen)
    fuses = True
    together = Simulator(snn, x, 6).run(x)
    fuses = False
    monkeypatch.setattr(Simulator, "_fuses", lambda self, device: False)
    apart = Simulator(snn, x, 6).run(x)
    assert torch.equal(together.logits, apart.logits)
    assert all(torch.equal(together.spikes[site], apart.spikes[site]) for site in snn.sites)
    assert len(seen) >= 2 * len(snn.sites)
    assert all(torch.equal(membrane, seen[True, *place]) for (_, *place), membrane in seen.items())
