"""NIR: every spike survives the file, an independent reader agrees, and what cannot be said is refused."""

import json
import math
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import nir
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn
from torch.nn import functional as F

from families import build, inputs, networks
from rheobase import HALF, ZERO, Constant, Uniform, convert, evaluate, simulate
from rheobase.exchange.nir import Export, from_nir, to_nir
from rheobase.exchange.nir.canonical import NirError
from rheobase.exchange.nir.golden import golden_path, read_golden, run
from rheobase.network import codings
from rheobase.network.neurons import Coefficients, FewSpikes, IntegrateFire
from rheobase.network.snn import SNN
from rheobase.network.starts import Corrected, Potential
from rheobase.simulation import simulator
from rheobase.simulation.plan import schedule
from rheobase.training import datasets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")

SAYABLE = [
    "Plain", "SharedReLU", "IdentitySkip", "Functional", "DenseConcat", "Depthwise", "Inception", "NormFirst",
    "PreActivation",
]  # fmt: skip
UNSAYABLE = {
    "SqueezeExcite": "multiplies two signals",
    "MaxPooled": "sums of spikes",
    "Transposed": "no transposed convolution",
    "OneDimensional": "not all alike",
    "Shuffled": "cannot permute",
}


def example(name: str = "Plain", **options: Any) -> SNN:
    chosen = {"initial": HALF, "per_channel": True, **options}
    return convert(build(name), "max-norm", inputs(64, seed=5), **chosen)


def assert_same(a: SNN, b: SNN, x: Tensor, steps: int = 12) -> None:
    ours, theirs = run(a, x, steps), run(b, x, steps)
    assert a.sites == b.sites
    assert all(torch.equal(ours[site], theirs[site]) for site in a.sites)


def execute(path: Path, fires: Callable[[Tensor], Tensor], hard: bool = False, zero: bool = False) -> int:
    """Run a NIR file as plainly as possible on its golden inputs; count the spikes that differ."""
    graph = nir.read(path)
    shapes = {
        n: tuple(v.shape) for n, node in graph.nodes.items() if (v := getattr(node, "r", None)) is not None
    }
    golden = read_golden(path, {"input": tuple(graph.nodes["input"].input_type["input"]), **shapes})
    order: list[str] = []
    while len(order) < len(graph.nodes):
        order += [
            n for n in graph.nodes if n not in order and all(a in order for a, b in graph.edges if b == n)
        ]
    membranes: dict[str, Tensor] = {}
    differing = 0
    for t in range(golden.steps):
        values = {"input": golden.inputs[:, t]}
        for name in order[1:]:
            node = graph.nodes[name]
            x = sum(values[a] for a, b in graph.edges if b == name)
            parameters = {k: torch.as_tensor(v) for k, v in vars(node).items() if isinstance(v, np.ndarray)}
            if isinstance(node, nir.IF):
                start = torch.as_tensor(node.metadata["v_init"]) * (not zero)
                u = membranes.get(name, start) + x
                values[name] = s = fires(u - parameters["v_threshold"]).float()
                membranes[name] = u * (1 - s) if hard else u - s * parameters["v_threshold"]
                differing += int((s.bool() != golden.spikes[name][:, t]).sum())
            elif isinstance(node, nir.Affine):
                values[name] = F.linear(x, parameters["weight"], parameters["bias"])
            elif isinstance(node, nir.Conv2d):
                extents = [[int(n) for n in v] for v in (node.stride, node.padding, node.dilation)]
                values[name] = F.conv2d(x, parameters["weight"], parameters["bias"], *extents)
            elif isinstance(node, nir.AvgPool2d):
                extents = [[int(n) for n in v] for v in (node.kernel_size, node.stride, node.padding)]
                values[name] = F.avg_pool2d(x, *extents)
            else:
                values[name] = x.flatten(1)
    return differing


def at_least(excess: Tensor) -> Tensor:
    return excess >= 0


def above(excess: Tensor) -> Tensor:
    return excess > 0


class TestRoundTrip:
    @pytest.mark.parametrize("pool", ["average", "convolution"])
    @pytest.mark.parametrize("profile", ["float32", "grid"])
    @pytest.mark.parametrize("name", SAYABLE)
    def test_every_spike(self, name: str, profile: Any, pool: Any, tmp_path: Path) -> None:
        snn, x = example(name), inputs(6)
        export = to_nir(snn, tmp_path / "net.nir", weights=profile, pools=pool, golden=x, steps=12)
        back = from_nir(tmp_path / "net.nir")
        assert_same(export.snn, back, x if export.grid is None else export.grid.round(x))
        assert back.sites == snn.sites
        assert back.input_shape == (3, 8, 8)
        again = to_nir(back, tmp_path / "again.nir")
        assert_same(again.snn, back, x)

    @given(networks())
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def test_random_networks(self, tmp_path: Path, network: tuple[nn.Module, tuple[int, ...]]) -> None:
        model, shape = network
        x = torch.randn(24, *shape, generator=torch.Generator().manual_seed(3))
        snn = convert(model, "max-norm", x, initial=HALF, per_channel=True)
        export = to_nir(snn, tmp_path / "net.nir", golden=x[:4], steps=6)
        assert export.differing is not None
        assert export.spikes is not None
        assert export.differing <= 0.01 * export.spikes
        assert_same(export.snn, from_nir(tmp_path / "net.nir"), x[:4], 6)

    @pytest.mark.parametrize("shown", [codings.Poisson(7, 5.0), codings.TemporalSwitch(12, 5.0)], ids=repr)
    def test_codings(self, shown: codings.Coding, tmp_path: Path) -> None:
        export = to_nir(example(coding=shown), tmp_path / "net.nir", golden=inputs(4), steps=12)
        back = from_nir(tmp_path / "net.nir")
        assert back.coding == shown
        assert_same(export.snn, back, inputs(4))
        assert export.differing == 0

    @pytest.mark.parametrize("shown", [codings.Poisson(7, 8.0), codings.TemporalSwitch(12, 4.5)], ids=repr)
    def test_codings_on_the_grid(self, shown: codings.Coding, tmp_path: Path) -> None:
        path = tmp_path / "net.nir"
        export = to_nir(example(coding=shown), path, weights="grid", golden=inputs(4), steps=12)
        assert export.grid is not None
        assert export.grid.input_exponent == (shown.scale == 4.5)
        assert torch.equal(export.grid.round(inputs(4)), inputs(4))
        assert_same(export.snn, from_nir(path), inputs(4))
        assert execute(path, at_least) == execute(path, above) == 0
        with pytest.raises(NirError, match="a scale that is a power of two"):
            to_nir(example(coding=codings.Poisson(7, 4.7)), path, weights="grid", golden=inputs(4), steps=12)

    @pytest.mark.parametrize("strict", [False, True])
    @pytest.mark.parametrize("profile", ["float32", "grid"])
    def test_starts(self, profile: Any, strict: bool, tmp_path: Path) -> None:
        snn, x = example(fire_above=strict), inputs(6)
        first, second, third = snn.neurons.values()
        first.initial = Potential(torch.rand(6, 8, 8) * first.threshold.view(-1, 1, 1))
        second.initial = Corrected(HALF, torch.rand(8) * 0.1)
        third.initial = Constant(-0.25)
        export = to_nir(snn, tmp_path / "net.nir", weights=profile, golden=x, steps=12)
        back = from_nir(tmp_path / "net.nir")
        assert {n.strict for n in back.neurons.values()} == {strict}
        assert_same(export.snn, back, x if export.grid is None else export.grid.round(x))
        assert profile == "grid" or export.differing == 0


class TestMeaning:
    """What the file says, read by code that shares nothing with the writer."""

    @pytest.mark.parametrize("pool", ["average", "convolution"])
    @pytest.mark.parametrize("name", SAYABLE)
    def test_an_independent_reader_fires_the_same_spikes(self, name: str, pool: Any, tmp_path: Path) -> None:
        path = tmp_path / "net.nir"
        to_nir(example(name), path, weights="grid", pools=pool, golden=inputs(6), steps=12)
        assert execute(path, at_least) == 0
        assert execute(path, above) == 0  # no sum ever lies on a threshold

    def test_wrong_readings_are_told_apart(self, tmp_path: Path) -> None:
        path = tmp_path / "net.nir"
        to_nir(example(), path, weights="grid", golden=inputs(6), steps=12)
        assert execute(path, at_least, zero=True) > 100
        assert execute(path, at_least, hard=True) > 100

    def test_a_batch_that_does_not_fit_at_once_is_recorded_whole(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        snn, x = example(), inputs(8)
        whole = run(snn, x, 9)
        plan = schedule(snn, x)
        monkeypatch.setitem(simulator.DEFAULT_MEMORY, "cpu", 3 * (plan.fixed_bytes + 5 * plan.moving_bytes))
        assert simulate(snn, x, 9).chunk[0] < 8
        parts = run(snn, x, 9)
        for site, spikes in whole.items():
            assert torch.equal(parts[site], spikes)

    def test_without_the_tie_offset_comparisons_differ(self, tmp_path: Path) -> None:
        path = tmp_path / "net.nir"
        export = to_nir(example(), path, weights="grid", golden=inputs(64), steps=12)
        for neuron in export.snn.neurons.values():
            neuron.initial = HALF
        assert export.grid is not None
        x = export.grid.round(inputs(64))
        loose = run(export.snn, x, 12)
        for neuron in export.snn.neurons.values():
            neuron.strict = True
        tight = run(export.snn, x, 12)
        golden = run(from_nir(path), x, 12)
        assert sum(int((loose[s] != tight[s]).sum()) for s in loose) > 0
        assert all(torch.equal(loose[s], golden[s]) for s in loose)

    @pytest.mark.parametrize("name", SAYABLE)
    def test_the_grid_is_exact(self, name: str, tmp_path: Path) -> None:
        """Single and double precision fire the same spikes, whole batches and single samples too."""
        export = to_nir(example(name), tmp_path / "net.nir", weights="grid", golden=inputs(6), steps=12)
        assert export.grid is not None
        x = export.grid.round(inputs(6))
        expected = run(export.snn, x, 12)
        alone = run(export.snn, x[:1], 12)
        double = run(export.snn.double(), x.double(), 12)
        for site, spikes in expected.items():
            assert torch.equal(spikes, double[site])
            assert torch.equal(spikes[:1], alone[site])
        assert max(export.grid.bits.values()) < 24

    def test_what_readers_stumble_over_is_not_in_the_file(self, tmp_path: Path) -> None:
        for name in SAYABLE:
            to_nir(example(name), tmp_path / "net.nir", golden=inputs(2), steps=4)
            graph = nir.read(tmp_path / "net.nir")  # with its type check
            assert {type(n).__name__ for n in graph.nodes.values()} <= {
                "Input", "Output", "Conv2d", "Affine", "IF", "AvgPool2d", "Flatten",
            }  # fmt: skip
            for node in graph.nodes.values():
                if isinstance(node, nir.Conv2d):
                    assert node.groups == 1
                    assert node.weight.shape[2] == node.weight.shape[3]
                    assert node.weight.shape[1] == node.input_type["input"][0]
                if isinstance(node, nir.IF):
                    assert (node.v_threshold == 1).all()
                    assert (node.r == 1).all()
                    assert node.metadata["reset"] == "subtract"
            incoming = [b for _, b in graph.edges]
            assert max(incoming.count(b) for b in incoming) <= 2
            assert incoming.count("output") == 1
            assert all(word.isidentifier() for word in graph.nodes)
            assert graph.metadata["dt"] == 1
            assert graph.metadata["threshold_compare"] == ">="
            with h5py.File(tmp_path / "net.nir") as file:
                assert not any("v_reset" in node for node in file["node/nodes"].values())

    def test_the_long_path_comes_before_the_skip(self, tmp_path: Path) -> None:
        to_nir(example("IdentitySkip"), tmp_path / "net.nir")
        edges = nir.read(tmp_path / "net.nir").edges
        assert edges.index(("conv", "relu_2")) < edges.index(("relu_amplitude", "relu_2"))

    def test_golden_spikes_belong_to_the_graph(self, tmp_path: Path) -> None:
        path = tmp_path / "net.nir"
        export = to_nir(example(), path, golden=inputs(5), steps=7)
        shapes = {"n2": (6, 8, 8), "n6": (8, 2, 2), "n11": (12,)}
        golden = read_golden(path, {"input": (3, 8, 8), **shapes})
        assert golden.digest == nir.read(path).metadata["golden"]
        assert golden.steps == 7
        assert torch.equal(golden.inputs[:, 3], inputs(5))
        assert set(golden.starts["n11"].tolist()) == {0.0, 0.5}  # one of them never fires
        expected = run(export.snn, inputs(5), 7)
        for name, site in zip(shapes, export.snn.sites, strict=True):
            assert torch.equal(golden.spikes[name], expected[site])

    def test_accuracy_stays(self, trained: nn.Module, digits: datasets.Dataset, tmp_path: Path) -> None:
        snn = convert(trained, "max-norm", digits.train.take(256), initial=HALF)
        x = digits.train.normalise(digits.train.images[:256])
        test = digits.test.take(360)
        images, labels = test.normalise(test.images), test.labels
        before = evaluate(snn, (images, labels), 16, progress=False).accuracy
        plain = to_nir(snn, tmp_path / "plain.nir", golden=x, steps=16)
        assert plain.differing is not None
        assert plain.spikes is not None
        assert plain.differing <= 1e-3 * plain.spikes
        export = to_nir(snn, tmp_path / "grid.nir", weights="grid", golden=torch.cat([x, images]), steps=16)
        assert export.grid is not None
        after = evaluate(export.snn, (export.grid.round(images), labels), 16, progress=False).accuracy
        assert after[15] >= before[15] - 1.5
        assert after[7] >= before[7] - 3


class Odd(nn.Module):
    """Whatever NIR has another form for."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Conv2d(3, 4, (3, 1), padding=(1, 0), stride=(2, 1))
        self.same = nn.Conv2d(4, 6, 3, padding="same", dilation=2)
        self.shuffle = nn.ChannelShuffle(2)
        self.grouped = nn.Conv2d(6, 6, 3, padding="valid", groups=3)
        self.last = nn.Conv2d(3, 4, 1)
        self.fc, self.skip = nn.Linear(4, 5), nn.Linear(4, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.flat(x))
        x = torch.relu(self.same(F.pad(x, (2, 0, 1, 3))))
        x = torch.relu(self.grouped(self.shuffle(x)[:, :, 1:-1, :]))
        x = torch.relu(self.last(x[:, 1:4] + x[:, 1:4]))
        x = torch.relu(x + x + 0.5 * x)
        x = x.mean((2, 3), keepdim=True).flatten(1)
        return self.fc(x) + self.skip(x)


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.AvgPool1d(2), nn.Conv1d(6, 6, 3, groups=2),
            nn.ReLU(), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("profile", ["float32", "grid"])
@pytest.mark.parametrize(("model", "shape"), [(Odd(), (3, 8, 8)), (Line(), (2, 12))], ids=["odd", "line"])
def test_everything_with_another_form(
    model: nn.Module, shape: tuple[int, ...], profile: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.5)
    x = torch.randn(64, *shape)
    snn = convert(model.eval(), "max-norm", x, initial=HALF)
    export = to_nir(snn, tmp_path / "net.nir", weights=profile, golden=x[:8], steps=8)
    assert_same(
        export.snn, from_nir(tmp_path / "net.nir"), x[:8] if not export.grid else export.grid.round(x[:8])
    )
    assert [b for _, b in nir.read(tmp_path / "net.nir").edges].count("output") == 1
    if profile == "float32":
        assert export.differing == 0
        assert export.spikes is not None
        assert export.spikes > 100


class Raised(nn.Module):
    """A number added where no layer can take it in: zeros are padded around it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, 4, 3, padding=1) for channels in (3, 4))
        self.head = nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(0.5 * F.relu(self.first(x)) + 0.1)).flatten(1))


@pytest.mark.parametrize("profile", ["float32", "grid"])
def test_a_number_that_is_added_to_all_channels(profile: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.rand(64, 3, 8, 8)
    export = to_nir(
        convert(Raised().eval(), "max-norm", x), tmp_path / "net.nir", weights=profile, golden=x[:8], steps=8
    )
    assert_same(
        export.snn, from_nir(tmp_path / "net.nir"), export.grid.round(x[:8]) if export.grid else x[:8]
    )


class TestRefusals:
    @pytest.mark.parametrize("name", UNSAYABLE)
    def test_what_nir_has_no_word_for(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(NirError, match=UNSAYABLE[name]):
            to_nir(example(name), tmp_path / "net.nir")
        assert list(tmp_path.iterdir()) == []

    def test_neurons_and_starts(self, tmp_path: Path) -> None:
        snn = example(initial=Uniform())
        with pytest.raises(NirError, match="starts at random") as caught:
            to_nir(snn, tmp_path / "net.nir")
        assert str(caught.value).count("starts at random") == 3
        for neuron in snn.neurons.values():
            neuron.initial = ZERO
        first, second, third = snn.sites
        snn.neuron(first).reset = "zero"
        snn.module.set_submodule(second, FewSpikes(torch.ones(()), Coefficients.binary(4)))
        snn.neuron(third).threshold = torch.ones(12, 1)
        with pytest.raises(NirError, match=r"reset to zero(.|\n)*depends on their time(.|\n)*each position"):
            to_nir(snn, tmp_path / "net.nir")

    def test_mixed_comparisons(self, tmp_path: Path) -> None:
        snn = example()
        snn.neuron(snn.sites[0]).strict = True
        with pytest.raises(NirError, match="convert with one rule"):
            to_nir(snn, tmp_path / "net.nir")

    def test_unknown_input_shapes_and_words(self, tmp_path: Path) -> None:
        snn = example()
        with pytest.raises(ValueError, match="none of float32, grid"):
            to_nir(snn, tmp_path / "net.nir", weights="int8")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="pass golden="):
            to_nir(snn, tmp_path / "net.nir", weights="grid")
        snn.input_shape = None
        with pytest.raises(ValueError, match=r"set snn\.input_shape"):
            to_nir(snn, tmp_path / "net.nir")

    @pytest.mark.parametrize("profile", ["float32", "grid"])
    def test_golden_inputs_that_are_none(self, profile: Any, tmp_path: Path) -> None:
        for golden in (inputs(0), inputs(2) * math.nan, inputs(2) * math.inf):
            with pytest.raises(ValueError, match="golden inputs must be some, and finite"):
                to_nir(example(), tmp_path / "net.nir", weights=profile, golden=golden, steps=2)
        assert list(tmp_path.iterdir()) == []

    def test_what_is_no_spiking_network(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"spiking network.*Plain"):
            to_nir(build("Plain"), tmp_path / "net.nir")

    def test_thresholds_that_cannot_be_divided_by(self, tmp_path: Path) -> None:
        snn = example()
        snn.neuron(snn.sites[1]).threshold.fill_(1e-44)
        with pytest.raises(NirError, match=f"{snn.sites[1]}: its threshold is too small"):
            to_nir(snn, tmp_path / "net.nir")

    def test_sums_that_are_not_exact(self, tmp_path: Path) -> None:
        with pytest.raises(NirError, match=r"need 2\d.\d bits.*at most \d+ steps fit"):
            to_nir(example(), tmp_path / "net.nir", weights="grid", golden=inputs(4), steps=2**15)
        snn = example()
        snn.neuron(snn.sites[1]).threshold.mul_(1e-4)
        with pytest.raises(NirError, match="calibrate again"):
            to_nir(snn, tmp_path / "net.nir", weights="grid", golden=inputs(4), steps=4)
        assert list(tmp_path.iterdir()) == []

    def test_starts_are_part_of_the_proof(self, tmp_path: Path) -> None:
        snn = example()
        for neuron in snn.neurons.values():
            neuron.initial = Constant(2.0**20)
        with pytest.raises(NirError, match="only 24 are exact"):
            to_nir(snn, tmp_path / "net.nir", weights="grid", golden=inputs(2), steps=1)

    def test_more_steps_take_a_coarser_input_grid(self, tmp_path: Path) -> None:
        few, many = (
            to_nir(example(), tmp_path / "net.nir", weights="grid", golden=inputs(4), steps=steps).grid
            for steps in (4, 512)
        )
        assert few is not None
        assert many is not None
        assert few.input_exponent > many.input_exponent
        assert max(many.bits.values()) < 24

    def test_without_the_package_it_is_said_what_to_install(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "nir", None)
        with pytest.raises(ModuleNotFoundError, match="pip install nir"):
            to_nir(example(), tmp_path / "net.nir")
        with pytest.raises(ModuleNotFoundError, match="pip install"):
            from_nir(tmp_path / "net.nir")

    def test_inputs_outside_the_proof(self, tmp_path: Path) -> None:
        grid = to_nir(example(), tmp_path / "net.nir", weights="grid", golden=inputs(4), steps=4).grid
        assert grid is not None
        with pytest.raises(ValueError, match="proved exact for"):
            grid.round(inputs(4) * 3)

    def test_a_failure_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object) -> None:
            raise OSError("no room")

        monkeypatch.setattr(nir, "write_data", fail)
        with pytest.raises(OSError, match="no room"):
            to_nir(example(), tmp_path / "net.nir", golden=inputs(2), steps=2)
        assert list(tmp_path.iterdir()) == []


def test_weights_are_eight_bits(tmp_path: Path) -> None:
    export = to_nir(example("SharedReLU"), tmp_path / "net.nir", weights="grid", golden=inputs(4), steps=8)
    graph = nir.read(tmp_path / "net.nir")
    exponents = json.loads(graph.metadata["exponents"])
    layers = {name: n for name, n in graph.nodes.items() if hasattr(n, "weight")}
    assert exponents.keys() == layers.keys()
    assert len(layers) == 5
    for name, node in layers.items():
        whole = node.weight.astype(np.float64) * 2.0 ** exponents[name]
        assert (whole == np.round(whole)).all()
        assert 32 < np.abs(whole).max() <= 127
    assert isinstance(export, Export)


def test_neurons_that_never_fire_stay_silent(tmp_path: Path) -> None:
    snn = example()
    neuron = snn.neuron(snn.sites[0])
    neuron.retune(torch.tensor([1.0, 0, 2, 0, 1, 1]), torch.ones(()))
    neuron.amplitude = torch.ones(())
    export = to_nir(snn, tmp_path / "net.nir", golden=inputs(6), steps=8)
    spikes = run(from_nir(tmp_path / "net.nir"), inputs(6), 8)[snn.sites[0]]
    assert not spikes[:, :, [1, 3]].any()
    assert spikes[:, :, [0, 2]].any()
    assert export.differing == 0


def test_neurons_that_never_fire_stay_silent_in_double_precision(tmp_path: Path) -> None:
    model = build("Plain").double()
    model[1].bias.data[2] = -100.0
    start = Corrected(HALF, torch.tensor(0.01))
    snn = convert(model, "max-norm", inputs(64).double(), initial=start, per_channel=True)
    export = to_nir(snn, tmp_path / "net.nir", golden=inputs(6), steps=8)
    assert not run(from_nir(tmp_path / "net.nir"), inputs(6), 8)[snn.sites[0]][:, :, 2].any()
    assert export.differing == 0


class TestDamage:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        snn = convert(model, "max-norm", torch.rand(8, 4), initial=HALF)
        to_nir(snn, tmp_path / "net.nir", golden=torch.rand(2, 4), steps=2)
        return tmp_path / "net.nir"

    def test_any_change_of_a_bit_is_told(self, file: Path) -> None:
        content = file.read_bytes()
        for place in range(0, len(content) - 80, len(content) // 500):
            file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            with pytest.raises(NirError, match="damaged or changed after it was written"):
                from_nir(file)
        golden = golden_path(file)
        golden.write_bytes(golden.read_bytes()[:2000] + b"\1" + golden.read_bytes()[2001:])
        with pytest.raises(NirError, match="damaged or changed after it was written"):
            read_golden(file, {})

    def test_whoever_writes_to_the_file_may(self, file: Path) -> None:
        with h5py.File(file, "r+") as content:
            content["node/nodes/n0/bias"][...] = 0.25
        assert (from_nir(file).module.get_submodule("0").bias == 0.25).all()
        nir.write(file, nir.read(file, type_check=False))
        assert from_nir(file).sites == ["1"]

    @pytest.mark.parametrize("place", ["v_init", "dt", "names", "coding", "weight", "shape"])
    def test_values_that_are_none(self, place: str, file: Path) -> None:
        written = file.read_bytes()
        found: list[str] = []
        with h5py.File(file, "r") as content:
            content.visit(lambda name: found.append(name) if name.endswith(f"/{place}") else None)
        junk = ["x", "[" * 5000, "9" * 5000, np.zeros(0), np.zeros((1,) * 9), np.array(np.nan), -1, 2**40]
        for value in junk:
            file.write_bytes(written)
            with h5py.File(file, "r+") as content:
                del content[found[0]]
                content[found[0]] = value
            with pytest.raises(NirError) as caught:
                from_nir(file)
            assert len(str(caught.value)) < 1000

    def test_values_of_other_files_are_not_fetched(self, file: Path, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_bytes(b"secret" * 100)
        place, written = "node/nodes/n0/bias", file.read_bytes()

        def outside(content: h5py.File) -> None:
            content.create_dataset(place, (3,), "f4", external=[(str(secret), 0, 12)])

        def linked(content: h5py.File) -> None:
            content[place] = h5py.ExternalLink(str(tmp_path / "other.nir"), "/bias")

        def virtual(content: h5py.File) -> None:
            layout = h5py.VirtualLayout((3,), "f4")
            layout[:] = h5py.VirtualSource(str(tmp_path / "other.nir"), "bias", (3,))
            content.create_virtual_dataset(place, layout)

        for put in (outside, linked, virtual):
            file.write_bytes(written)
            with h5py.File(file, "r+") as content:
                del content[place]
                put(content)
            with pytest.raises(NirError, match="bias refers to values elsewhere"):
                from_nir(file)

    def test_sizes_that_the_file_cannot_hold(self, file: Path) -> None:
        with h5py.File(file, "r+") as content:
            del content["node/nodes/n0/bias"]
            content.create_dataset("node/nodes/n0/bias", (2**34,), "f4", chunks=(2**20,))
        with pytest.raises(NirError, match="bias claims more values than the file can hold"):
            from_nir(file)

    def test_folders_without_end(self, file: Path) -> None:
        with h5py.File(file, "r+") as content:
            content["node/nodes/again"] = content["node/nodes"]
        with pytest.raises(NirError, match="nested too deeply"):
            from_nir(file)


class TestForeignFiles:
    def graph(self, *nodes: Any, **metadata: Any) -> nir.NIRGraph:
        graph = nir.NIRGraph.from_list(*nodes, type_check=False)
        graph.metadata = metadata
        return graph

    def fire(self, *shape: int, **metadata: Any) -> nir.IF:
        ones = np.ones(shape, dtype=np.float32)
        return nir.IF(r=ones, v_threshold=0.5 * ones, metadata=metadata)

    def linear(self, *shape: int) -> nir.Linear:
        return nir.Linear(np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 8)

    def test_files_of_others_are_read_where_they_are_clear(self, tmp_path: Path) -> None:
        two, none = np.array([2, 2]), np.array([0, 0])
        scale = np.array([0.5, 0.25], dtype=np.float32).reshape(2, 1, 1) * np.ones((2, 2, 2), np.float32)
        layers = [
            nir.Input(np.array([2, 4, 4])), nir.SumPool2d(two, two, none), nir.Scale(scale),
            nir.Flatten({"input": np.array([2, 2, 2])}, 0), self.linear(3, 8), self.fire(3),
        ]  # fmt: skip
        nir.write(tmp_path / "net.nir", self.graph(*layers, nir.Output(np.array([3]))))
        with pytest.raises(NirError, match="Pass reset='subtract' or reset='zero'"):
            from_nir(tmp_path / "net.nir")
        x = torch.rand(3, 2, 4, 4)
        for reset in ("subtract", "zero"):
            snn = from_nir(tmp_path / "net.nir", reset=reset)  # type: ignore[arg-type]
            (neuron,) = snn.neurons.values()
            assert isinstance(neuron, IntegrateFire)
            assert (neuron.reset, neuron.strict, neuron.threshold.item()) == (reset, True, 0.5)
            pooled = F.avg_pool2d(x, 2) * 4 * torch.tensor([0.5, 0.25]).view(2, 1, 1)
            current = F.linear(pooled.flatten(1), torch.arange(24.0).view(3, 8) / 8)
            run = simulate(snn, x, 5)
            v, count = torch.zeros(3, 3), torch.zeros(3, 3)
            for t in range(5):
                v = v + current
                s = (v > 0.5).float()
                v = v * (1 - s) if reset == "zero" else v - 0.5 * s
                count += s
                torch.testing.assert_close(run.logits[t], count / (t + 1))

    def test_grouped_convolutions(self, tmp_path: Path) -> None:
        weight = np.random.default_rng(0).normal(size=(4, 1, 3, 1)).astype(np.float32)
        conv = nir.Conv2d((6, 6), weight, 1, (1, 0), 1, 4, np.zeros(4, np.float32))
        graph = self.graph(
            nir.Input(np.array([4, 6, 6])), conv, self.fire(4, 6, 6), nir.Output(np.array([4, 6, 6]))
        )
        nir.write(tmp_path / "net.nir", graph)
        snn = from_nir(tmp_path / "net.nir", reset="subtract")
        assert simulate(snn, torch.rand(2, 4, 6, 6), 3).logits.shape == (3, 2, 4, 6, 6)

    def test_names_that_networks_cannot_have(self, tmp_path: Path) -> None:
        nodes = {"input": nir.Input(np.array([3])), "output": nir.Output(np.array([3]))}
        names = ["meta", "graph", "class", "a-b", "a b"]
        nodes |= {name: self.fire(3) for name in names}
        graph = nir.NIRGraph(nodes, list(pairwise(["input", *names, "output"])), type_check=False)
        nir.write(tmp_path / "net.nir", graph)
        found = from_nir(tmp_path / "net.nir", reset="zero").sites
        assert found == ["n_meta", "n_graph", "n_class", "a-b", "a_b"]

    @pytest.mark.parametrize("kind", ["LIF", "I", "Threshold", "Delay"])
    def test_nodes_without_an_operation(self, kind: str, tmp_path: Path) -> None:
        one = np.ones(3, dtype=np.float32)
        nodes = {
            "LIF": lambda: nir.LIF(one, one, one, one), "I": lambda: nir.I(one),
            "Threshold": lambda: nir.Threshold(one), "Delay": lambda: nir.Delay(one),
        }  # fmt: skip
        graph = self.graph(nir.Input(np.array([3])), nodes[kind](), nir.Output(np.array([3])))
        nir.write(tmp_path / "net.nir", graph)
        with pytest.raises(NirError, match=f"is a {kind}"):
            from_nir(tmp_path / "net.nir", reset="subtract")

    def test_graphs_that_are_none(self, tmp_path: Path) -> None:
        path = tmp_path / "net.nir"
        node = {
            "input": nir.Input(np.array([3])),
            "a": self.fire(3),
            "b": self.fire(3),
            "output": nir.Output(np.array([3])),
        }
        loop = [("input", "a"), ("a", "b"), ("b", "a"), ("b", "output")]
        nir.write(path, nir.NIRGraph(node, loop, metadata={"reset": "subtract"}))
        with pytest.raises(NirError, match="cycle through a, b"):
            from_nir(path)
        node["a"] = self.fire(3, v_init=np.ones(5))
        nir.write(
            path,
            nir.NIRGraph(node, [("input", "a"), ("a", "b"), ("b", "output")], metadata={"reset": "subtract"}),
        )
        with pytest.raises(NirError, match=r"3,. neurons and .5,. starts"):
            from_nir(path)

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            from_nir(tmp_path / "net.nir")
        (tmp_path / "net.nir").write_bytes(b"nothing")
        with pytest.raises(NirError, match="not a whole NIR file"):
            from_nir(tmp_path / "net.nir")
        to_nir(example(), tmp_path / "net.nir")
        content = (tmp_path / "net.nir").read_bytes()
        (tmp_path / "net.nir").write_bytes(content[: len(content) // 2])
        with pytest.raises(NirError, match="not a whole NIR file"):
            from_nir(tmp_path / "net.nir")
        with pytest.raises(FileNotFoundError, match="export with golden=inputs"):
            read_golden(tmp_path / "net.nir", {})

    def test_metadata_is_plain(self, tmp_path: Path) -> None:
        to_nir(example(), tmp_path / "net.nir", golden=inputs(2), steps=2)
        metadata = nir.read(tmp_path / "net.nir").metadata
        assert json.loads(metadata["coding"]) == {"kind": "ConstantCurrent"}
        assert json.loads(metadata["provenance"])["method"] == "max-norm"
        assert golden_path(tmp_path / "net.nir").name == "net.golden.nir"


@pytest.mark.parametrize("profile", ["float32", "grid"])
def test_defaults_of_torch_change_nothing(tmp_path: Path, profile: str) -> None:
    snn, x = example("SharedReLU"), inputs(8)
    plain = to_nir(snn, tmp_path / "plain.nir", weights=profile, golden=x)
    before, state = torch.get_default_dtype(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            other = to_nir(snn, tmp_path / "other.nir", weights=profile, golden=x)
            back = from_nir(other.path)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(torch.get_rng_state(), state)
    assert (other.spikes, other.differing) == (plain.spikes, plain.differing)
    assert back.dtype == torch.float32
    assert_same(back, from_nir(plain.path), x)
