"""Rewriting: everything with a form in NIR computes the same, everything else is refused with a reason."""

from pathlib import Path
from typing import Any

import nir
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from families import build, inputs
from nir_examples import WRITABLE, above, assert_same, at_least, example, execute, rounded
from rheobase import HALF, ZERO, Uniform, convert
from rheobase.exchange.nir import NirError, from_nir, to_nir
from rheobase.exchange.nir.golden import run
from rheobase.network import Coefficients, Corrected, FewSpikes

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


class Odd(nn.Module):
    """Layers that NIR has in another form."""

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


class Line(nn.Sequential):
    """Signals of one dimension."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(2, 6, 3, padding=1), nn.ReLU(), nn.AvgPool1d(2), nn.Conv1d(6, 6, 3, groups=2),
            nn.ReLU(), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3),
        )  # fmt: skip


class Raised(nn.Module):
    """A constant that no layer can absorb: the padding around it is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, 4, 3, padding=1) for channels in (3, 4))
        self.head = nn.Linear(256, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(0.5 * F.relu(self.first(x)) + 0.1)).flatten(1))


@pytest.mark.parametrize("weights", ["float32", "grid"])
@pytest.mark.parametrize(
    ("model", "shape"), [(Odd, (3, 8, 8)), (Line, (2, 12)), (Raised, (3, 8, 8))], ids=lambda m: str(m)
)
def test_everything_with_another_form(model: Any, shape: Any, weights: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = model().eval()
    for parameter in network.parameters():
        nn.init.normal_(parameter, 0, 0.5)
    x = torch.randn(64, *shape)
    snn = convert(network, "max-norm", x, initial=HALF)
    export = to_nir(snn, tmp_path / "net.nir", weights=weights, golden=x[:8], steps=8)
    assert_same(export.snn, from_nir(tmp_path / "net.nir"), rounded(export, x[:8]))
    assert [b for _, b in nir.read(tmp_path / "net.nir").edges].count("output") == 1
    assert export.spikes is not None
    assert export.spikes > 100
    if weights == "float32":
        assert export.differing == 0
    else:
        assert execute(export.path, at_least) == execute(export.path, above) == 0


def test_the_form_of_the_result(tmp_path: Path) -> None:
    for name in WRITABLE:
        to_nir(example(name), tmp_path / "net.nir")
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
        incoming = [b for _, b in graph.edges]
        assert max(incoming.count(b) for b in incoming) <= 2
        assert incoming.count("output") == 1


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("SqueezeExcite", "multiplies two signals"), ("MaxPooled", "average pool"),
        ("Transposed", "transposed convolution"), ("OneDimensional", "differ in size"),
        ("Shuffled", "permute"),
    ],
)  # fmt: skip
def test_operations_without_a_form(name: str, fact: str, tmp_path: Path) -> None:
    with pytest.raises(NirError, match=fact) as caught:
        to_nir(example(name), tmp_path / "net.nir")
    assert all(refusal.reason and refusal.remedy for refusal in caught.value.places.values())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("layer", "remedy"),
    [
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), "padding_mode='zeros'"),
        (nn.Conv2d(3, 4, (2, 3)), "all odd or all even"),
        (nn.AvgPool2d(3, 2, 1, count_include_pad=False), "count_include_pad=True"),
        (nn.AvgPool2d(2, divisor_override=3), "divisor_override"),
        (nn.AvgPool2d(3, 2, ceil_mode=True), "ceil_mode=False"),
        (nn.Linear(8, 4), "flatten"),
    ],
    ids=str,
)
def test_settings_without_a_form(layer: nn.Module, remedy: str, tmp_path: Path) -> None:
    x = torch.rand(8, 3, 8, 8)
    snn = convert(nn.Sequential(nn.ReLU(), layer, nn.ReLU(), nn.Flatten()).eval(), "max-norm", x)
    with pytest.raises(NirError) as caught:
        to_nir(snn, tmp_path / "net.nir")
    assert [remedy in refusal.remedy for refusal in caught.value.places.values()] == [True]


def test_neurons_and_starts_without_a_form(tmp_path: Path) -> None:
    snn = example(initial=Uniform())
    with pytest.raises(NirError, match="at random") as caught:
        to_nir(snn, tmp_path / "net.nir")
    assert len(caught.value.places) == 3
    for neuron in snn.neurons.values():
        neuron.initial = ZERO
    first, second, third = snn.sites
    snn.neuron(first).reset = "zero"
    snn.module.set_submodule(second, FewSpikes(torch.ones(()), Coefficients.binary(4)))
    snn.neuron(third).threshold = torch.ones(12, 1)
    with pytest.raises(NirError) as caught:
        to_nir(snn, tmp_path / "net.nir")
    found = [refusal.reason for refusal in caught.value.places.values()]
    facts = ("to zero", "depends on their time", "per position")
    assert all(fact in reason for fact, reason in zip(facts, found, strict=True))


def test_thresholds_that_cannot_be_divided_by(tmp_path: Path) -> None:
    snn = example()
    snn.neuron(snn.sites[1]).threshold.fill_(1e-44)
    with pytest.raises(NirError, match="too small") as caught:
        to_nir(snn, tmp_path / "net.nir")
    assert list(caught.value.places) == [snn.sites[1]]


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
