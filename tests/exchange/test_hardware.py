"""Hardware limits: each is found where it is broken, and only there."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import build, inputs
from rheobase import HALF, convert, simulate
from rheobase.exchange.hardware import check_hardware, lava, targets
from rheobase.exchange.hardware.cores import bits_for, layers_of
from rheobase.exchange.hardware.measuring import largest_membranes
from rheobase.exchange.hardware.targets import TARGETS, core_memory
from rheobase.exchange.nir.canonical import canonicalise
from rheobase.exchange.nir.draft import Draft
from rheobase.exchange.nir.golden import run
from rheobase.network.codings import Poisson
from rheobase.network.snn import SNN
from rheobase.simulation import simulator
from rheobase.simulation.plan import schedule
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def labelled(snn: SNN, count: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs, with the network's own answers for labels."""
    assert snn.input_shape is not None
    x = torch.rand(count, *snn.input_shape, generator=torch.Generator().manual_seed(1))
    return x, snn.limit(x).flatten(1).argmax(1)


def converted(
    *layers: nn.Module, shape: tuple[int, ...] = (2, 16, 16), bias: bool = False, **options: Any
) -> SNN:
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.Flatten()).eval()
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            if not bias:
                module.bias = None
    return convert(
        model, "max-norm", torch.rand(16, *shape), **{"initial": HALF, "coding": Poisson(), **options}
    )


@pytest.fixture(scope="module")
def snn(trained: nn.Module, digits: datasets.Dataset) -> SNN:
    return convert(trained, "max-norm", digits.train.take(256), initial=HALF, per_channel=True)


class TestWholeNumbers:
    def test_accuracy_before_and_after_at_every_step(self, snn: SNN, digits: datasets.Dataset) -> None:
        before = copy.deepcopy(snn.state_dict())
        result = check_hardware(snn, "generic-int8", digits.test.take(200), steps=12)
        assert result.fits
        assert result.after is not None
        assert len(result.before) == len(result.after) == 12
        assert result.after[-1] >= result.before[-1] - 2
        assert result.after != result.before
        assert f"{result.after[-1]:.2f} %" in str(result)
        assert all(torch.equal(before[k], v) for k, v in snn.state_dict().items())

    def test_weights_are_whole_numbers(self, snn: SNN, digits: datasets.Dataset) -> None:
        result = check_hardware(snn, "generic-int8", digits.test.take(20), steps=4)
        assert result.snn is not None
        assert result.grid is not None
        for name, exponent in result.grid.exponents.items():
            weight = result.snn.module.get_submodule(name).weight * 2.0**exponent
            assert torch.equal(weight, weight.round())
            assert 64 <= weight.abs().max() <= 127
        assert {n.threshold.item() for n in result.snn.neurons.values()} == {1.0}

    def test_nothing_is_quantised_unless_asked_for(self, snn: SNN, digits: datasets.Dataset) -> None:
        result = check_hardware(snn, "loihi", digits.test.take(20), steps=4, quantise=False)
        assert result.fits
        assert result.after is result.snn is result.grid is None
        assert "quantise=True" in result.unchecked[0]

    def test_fewer_input_bits_let_an_image_be_a_bias_on_loihi(
        self, snn: SNN, digits: datasets.Dataset
    ) -> None:
        wide = check_hardware(snn, "loihi", digits.test.take(50), steps=8)
        assert [v.layer for v in wide.violations][:1] == ["0"]
        assert "image and bias together need" in wide.violations[0].found
        assert "input_bits" in wide.violations[0].remedy
        narrow = check_hardware(snn, "loihi", digits.test.take(50), steps=8, input_bits=3)
        assert len(narrow.violations) < len(wide.violations)
        assert not any("image" in v.found for v in narrow.violations)

    def test_what_is_not_checked_is_said(self, snn: SNN, digits: datasets.Dataset) -> None:
        for target in TARGETS:
            result = check_hardware(snn, target, digits.test.take(10), steps=2)
            assert result.unchecked
            assert all(f"not checked: {what}" in str(result) for what in result.unchecked)
            assert result.source in str(result)

    @pytest.mark.parametrize("samples", [4, 2, 1])
    def test_membranes_are_measured(self, samples: int, monkeypatch: pytest.MonkeyPatch) -> None:
        snn = converted(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.ReLU(), coding=None)
        for neuron in snn.neurons.values():
            neuron.threshold.fill_(1.0)
        x = torch.rand(4, 2, 16, 16) * 3
        spikes = run(snn, x, 10)
        plan = schedule(snn, x)
        room = samples * (plan.fixed_bytes + 8 * plan.moving_bytes)  # of ten steps
        monkeypatch.setitem(simulator.DEFAULT_MEMORY, "cpu", room)
        assert simulate(snn, x, 10).chunk[0] == samples
        first, second = snn.sites
        expected = {}
        for site, signal in ((first, x[:, None].expand(-1, 10, -1, -1, -1)), (second, spikes[first].float())):
            layer = snn.module.get_submodule({first: "0", second: "2"}[site])
            v, largest = torch.full(spikes[site].shape[:1] + spikes[site].shape[2:], 0.5), 0.0
            for t in range(10):
                v = v + layer(signal[:, t])
                largest = max(largest, v.abs().max().item())
                v = v - spikes[site][:, t].float()
            expected[site] = max(largest, v.abs().max().item())
        assert largest_membranes(snn, [x], 10) == pytest.approx(expected, rel=1e-5)


class Branches(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 2, 3, padding=1)
        self.arms = nn.ModuleList([nn.Conv2d(2, 2, 3, padding=1) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.arms[0](x))
        for arm in self.arms[1:]:
            y = torch.relu(y + arm(x))
        return y


def layer(inputs: int, outputs: int, kernel: int = 3, count: int = 1, **options: Any) -> list[nn.Module]:
    conv = [nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **options}) for _ in range(count)]
    return [m for c in conv for m in (c, nn.ReLU())]


SPECK: dict[str, tuple[Callable[[], SNN], str, str]] = {
    "layers": (lambda: converted(*layer(2, 2, count=10)), "18", "nine cores"),
    "kernel": (lambda: converted(*layer(2, 2, 17), shape=(2, 24, 24)), "0", "at most 16"),
    "row": (
        lambda: converted(nn.Conv1d(2, 2, 3, padding=1), nn.ReLU(), shape=(2, 16)),
        "0",
        "kernels are square",
    ),
    "stride": (lambda: converted(*layer(2, 2, stride=3)), "0", "strides are"),
    "pool": (lambda: converted(*layer(2, 2), nn.AvgPool2d(8), *layer(2, 2)), "3", "kernels are square"),
    "features": (lambda: converted(*layer(2, 1025, 1), shape=(2, 2, 2)), "0", "at most 1024"),
    "read-out": (lambda: converted(*layer(2, 2), nn.Flatten(), nn.Linear(512, 4)), "3", "feeds neurons"),
    "branches": (lambda: converted(Branches(3)), "0.stem", "at most two others"),
    "sums": (lambda: converted(Branches(2)), "0.arms.1", "not by adding currents"),
    "kernels": (lambda: converted(*layer(64, 256), shape=(64, 4, 4)), "0", "Ki words"),
    "neurons": (lambda: converted(*layer(2, 64), shape=(2, 48, 48)), "0", "Ki words"),
    "analog": (lambda: converted(*layer(2, 2), coding=None), "0", "cores read spikes"),
    "placing": (lambda: converted(*layer(32, 32, count=6), shape=(32, 32, 32)), "10", "enough memory"),
}


class TestSpeck:
    @pytest.mark.parametrize("limit", SPECK)
    def test_every_limit_is_found(self, limit: str) -> None:
        make, where, words = SPECK[limit]
        snn = make()
        found = {
            v.layer: v
            for v in check_hardware(snn, "speck", labelled(snn, 2), steps=2).violations
            if words in v.limit
        }
        assert where in found, found
        assert all((v.limit, v.found, v.remedy) for v in found.values())
        assert all(str(v).startswith(v.layer) for v in found.values())

    def test_a_network_that_keeps_to_all_of_them(self) -> None:
        head = [nn.Flatten(), nn.Linear(128, 10), nn.ReLU()]
        snn = converted(*layer(2, 2, count=2), nn.AvgPool2d(2), *layer(2, 2), *head)
        result = check_hardware(snn, "speck", labelled(snn), steps=8)
        assert result.fits, str(result)
        assert "as far as it was checked" in str(result)

    def test_biases_and_membranes_have_their_sizes(self) -> None:
        snn = converted(*layer(2, 2, count=2), bias=True)
        for name in ("0", "2"):
            snn.module.get_submodule(name).bias.fill_(-40.0)
        result = check_hardware(snn, "speck", labelled(snn), steps=400)
        assert {v.layer for v in result.violations if "biases have 8 bits" in v.limit} == {"0", "2"}
        assert {v.layer for v in result.violations if "membranes have 16 bits" in v.limit} == {"1", "3"}

    def test_memory_is_counted_as_published(self) -> None:
        draft = Draft(converted(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), shape=(3, 9, 17)))
        with torch.no_grad():
            canonicalise(draft)
        assert core_memory(layers_of(draft, None)[0]) == (3 * 2**4 * 2**3, 5 * 2**4 * 2**5)


class TestLoihi:
    def test_a_core_takes_so_many_axons(self) -> None:
        snn = converted(*layer(2, 460, 1), *layer(460, 2, 3), shape=(2, 4, 4), coding=None)
        found = check_hardware(snn, "loihi", labelled(snn, 2), steps=2, quantise=False).violations
        assert [(v.layer, v.found) for v in found] == [("2", "its neurons read 4140 others")]
        assert "smaller kernels" in found[0].remedy

    def test_a_chip_has_so_many_cores(self) -> None:
        snn = converted(*layer(1, 65, 1, count=1), *layer(65, 65, 1), shape=(1, 32, 32), coding=None)
        found = check_hardware(snn, "loihi", labelled(snn, 2), steps=2, quantise=False).violations
        assert [(v.layer, v.found) for v in found] == [("2", "up to here the network needs 130 cores")]

    def test_where_lava_cannot_be_had_it_is_said(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        snn = converted(*layer(2, 2, count=2), shape=(2, 4, 4), coding=None)

        def report(input_bits: int = 3) -> str:
            return str(check_hardware(snn, "loihi", labelled(snn, 2), steps=2, input_bits=input_bits))

        monkeypatch.delenv(lava.VARIABLE, raising=False)
        assert "not run in lava-nc's fixed-point model: RHEOBASE_LAVA is not set" in report()
        monkeypatch.setenv(lava.VARIABLE, str(tmp_path / "nowhere"))
        assert "nowhere, which does not exist" in report()
        monkeypatch.setenv(lava.VARIABLE, sys.executable)  # a Python without lava-nc
        assert "No module named 'lava'" in report()

    def test_what_cannot_run_in_lava_is_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(lava.VARIABLE, sys.executable)
        joined = converted(Branches(2), shape=(2, 4, 4), coding=None)
        result = check_hardware(joined, "loihi", labelled(joined, 2), steps=2, input_bits=3)
        assert result.simulated is not None
        assert "only chains of layers" in result.simulated.skipped
        monkeypatch.setattr(lava, "_WEIGHTS", 100)
        wide = converted(*layer(2, 2, count=2), shape=(2, 8, 8), coding=None)
        result = check_hardware(wide, "loihi", labelled(wide, 2), steps=2, input_bits=3)
        assert result.simulated is not None
        assert "too large" in result.simulated.skipped

    def test_differing_spikes_do_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        snn = converted(*layer(2, 2, count=2), shape=(2, 4, 4), coding=None)
        data = labelled(snn, 2)
        monkeypatch.setattr(targets, "compare_spikes", lambda *given: (10, 0))
        assert check_hardware(snn, "loihi", data, steps=2, input_bits=3).fits
        monkeypatch.setattr(targets, "compare_spikes", lambda *given: (10, 1))
        result = check_hardware(snn, "loihi", data, steps=2, input_bits=3)
        assert not result.fits
        assert "1 of 10 decisions to fire differ" in str(result)


@pytest.mark.parametrize("target", TARGETS)
def test_what_no_hardware_here_has_is_named(target: str) -> None:
    snn = convert(build("MaxPooled"), "max-norm", inputs(16), initial=HALF)
    result = check_hardware(snn, target, (inputs(8), torch.zeros(8).long()), steps=4)
    assert not result.fits
    assert [v.layer for v in result.violations] == ["features.2 (MaxPool)", "max_pool2d (MaxPool)"]
    assert all("average pool" in v.remedy for v in result.violations)
    assert result.after is None
    assert len(result.before) == 4


def test_what_is_no_spiking_network() -> None:
    with pytest.raises(TypeError, match="expected a spiking network"):
        check_hardware(build("Plain"), "loihi", (inputs(2), torch.zeros(2, dtype=torch.int64)))  # type: ignore[arg-type]


def test_data_without_labels() -> None:
    with pytest.raises(ValueError, match="no labels"):
        check_hardware(converted(*layer(2, 2)), "generic-int8", torch.rand(2, 2, 16, 16), steps=2)


def test_inputs_without_bits() -> None:
    snn = converted(*layer(2, 2))
    with pytest.raises(ValueError, match=r"at least 2.*got 1"):
        check_hardware(snn, "generic-int8", labelled(snn, 2), steps=2, input_bits=1)


def test_unknown_targets() -> None:
    with pytest.raises(ValueError, match="generic-int8, loihi, speck"):
        check_hardware(converted(*layer(2, 2)), "abacus", None)


@pytest.mark.parametrize(
    ("value", "bits"), [(0, 1), (1, 2), (127, 8), (128, 9), (4095, 13), (4096, 14), (-127, 8)]
)
def test_bits(value: int, bits: int) -> None:
    assert bits_for(value) == bits
