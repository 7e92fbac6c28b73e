"""Few-spikes neurons: digits in time, and fitted tables for what is not a ReLU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import families
from conftest import fit as train_quickly
from conftest import images, respond
from rheobase import HALF, convert, prepare, simulate
from rheobase.conversion.capture import CaptureError, capture
from rheobase.methods import few_spikes
from rheobase.network.activations import Smooth
from rheobase.network.neurons import Coefficients, FewSpikes
from rheobase.simulation import Simulator
from rheobase.training import datasets


@settings(deadline=None, max_examples=60)
@given(
    steps=st.integers(1, 12),
    scale=st.sampled_from([0.25, 1.0, 8.0]),
    z=st.lists(st.integers(-(2**13), 2**14), min_size=1, max_size=40),
)
def test_with_binary_digits_it_is_the_floor_quantiser(steps: int, scale: float, z: list[int]) -> None:
    alpha, x = torch.tensor(scale), torch.tensor(z) / 2**13 * scale  # all exact in single precision
    quantum = scale * 2.0**-steps
    expected = ((x / quantum).floor() * quantum).clamp(0, scale * (1 - 2.0**-steps))
    neuron = FewSpikes(alpha, Coefficients.binary(steps))
    assert torch.equal(respond(neuron, x), expected)
    rounding = FewSpikes(alpha, Coefficients.binary(steps), initial=HALF)
    nearest = ((x / quantum + 0.5).floor() * quantum).clamp(0, scale * (1 - 2.0**-steps))
    assert torch.equal(respond(rounding, x), nearest)


def test_on_a_threshold_it_fires_unless_strict() -> None:
    on = torch.tensor([0.5])
    assert respond(FewSpikes(torch.tensor(1.0), Coefficients.binary(3)), on) == 0.5
    strict = FewSpikes(torch.tensor(1.0), Coefficients.binary(3), strict=True)
    assert respond(strict, on) == 0.375


def test_one_range_per_channel_and_dead_channels() -> None:
    neuron = FewSpikes(torch.tensor([1.0, 4.0, 0.0]), Coefficients.binary(2), initial=HALF)
    z = torch.tensor([0.6, 3.5, 3.0]).expand(1, 3)
    spikes = neuron.advance(z.clone(), neuron.start(z.shape, 0, 0), 2)
    assert spikes.mean(0).tolist() == [[0.5, 3.0, 0.0]]
    assert neuron(z).tolist() == [[pytest.approx(0.6), 3.0, 0.0]]
    neuron.limit(2.0)
    assert neuron.threshold[:2].tolist() == [1.0, 2.0]


def test_a_network_computes_with_quantised_activations(trained, digits) -> None:
    """Layer by layer the mean output is the quantised activation of the layer's mean input."""
    x = images(digits, 16)
    snn = convert(trained, "few-spikes", x, steps=5)
    for site in snn.sites:
        neuron = snn.neuron(site)
        current = Simulator(snn, x, 5, read=snn.source(site)).run(x).logits[-1]
        output = Simulator(snn, x, 5, read=site).run(x).logits[-1]
        quantum = neuron.threshold / 32
        expected = (current / quantum).floor().clamp(0, 31) / 32
        assert ((output * 5 - expected).abs() < 1e-6).double().mean() > 0.999
        assert neuron.amplitude == 1


@pytest.mark.parametrize("name", families.FAMILIES)
def test_many_steps_give_the_ordinary_network(name: str) -> None:
    model, x = families.build(name), families.inputs()
    snn = convert(model, "few-spikes", x, steps=16)
    expected = capture(model, x).module(x)
    torch.testing.assert_close(simulate(snn, x, 16).logits[-1], expected, atol=0.02, rtol=0.01)
    torch.testing.assert_close(snn.limit(x), expected, atol=0.02, rtol=0.01)


def test_neither_chunk_nor_batch_changes_the_answer(trained, digits) -> None:
    x = images(digits, 9)
    snn = convert(trained, "few-spikes", x, steps=6)
    run = simulate(snn, x, 6)
    assert run.at == (6,)
    assert run.chunk[1] == 6
    small = simulate(snn, x, 6, memory=2**18)
    assert small.chunk[0] < 9
    assert torch.equal(run.logits, small.logits)
    assert all(torch.equal(run.spikes[s], small.spikes[s]) for s in snn.sites)
    assert torch.equal(torch.cat([simulate(snn, part, 6).logits for part in x.split(4)], 1), run.logits)


def test_it_runs_its_steps_all_at_once_or_not_at_all(trained, digits) -> None:
    x = images(digits, 4)
    snn = convert(trained, "few-spikes", x, steps=6)
    for arguments in ({"steps": 8}, {"steps": 6, "chunk": 3}, {"steps": 6, "delay": 2}):
        with pytest.raises(ValueError, match=r"6 steps.*steps=.*chunk=.*delay="):
            Simulator(snn, x, **arguments)
    with pytest.raises(ValueError, match="must lie in 6…6, got"):
        simulate(snn, x, 6, at=[3, 6])
    neuron = snn.neuron(snn.sites[0])
    with pytest.raises(ValueError, match="got 3"):
        neuron.advance(torch.zeros(1, 2), torch.zeros(1, 2), 3)


def test_starts_are_searched_for_runs_of_its_length(trained, digits) -> None:
    with pytest.raises(ValueError, match="search with steps=6"):
        convert(trained, "few-spikes", digits.train.take(32), steps=6, initial="searched:4")


def test_the_range_is_the_maximum_or_a_percentile(trained, digits) -> None:
    x = images(digits, 64)
    whole, most = convert(trained, "few-spikes", x), convert(trained, "few-spikes", x, percentile=99.0)
    channels = convert(trained, "few-spikes", x, per_channel=True)
    for site in whole.sites:
        assert most.neuron(site).threshold < whole.neuron(site).threshold
        assert channels.neuron(site).threshold.max() == whole.neuron(site).threshold


class Mixed(nn.Module):
    """SiLU or GELU, a sigmoid gate and a ReLU."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 32, 3, 2, padding=1), nn.BatchNorm2d(32)
        self.gate, self.hidden, self.head = nn.Linear(32, 32), nn.Linear(512, 64), nn.Linear(64, 10)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm2(self.conv2(self.activation(self.norm1(self.conv1(x))))))
        x = x * torch.sigmoid(self.gate(x.mean([2, 3]))).view(-1, 32, 1, 1)
        return self.head(torch.relu(self.hidden(x.flatten(1))))


@pytest.mark.parametrize("activation", [nn.SiLU(inplace=True), nn.GELU(), nn.GELU("tanh")], ids=str)
def test_networks_of_other_activations_convert(activation: nn.Module, digits: datasets.Dataset) -> None:
    torch.manual_seed(0)
    model = train_quickly(Mixed(activation), digits.train, epochs=3)
    x, y = digits.test.normalise(digits.test.images), digits.test.labels
    snn = convert(model, "few-spikes", images(digits, 64), steps=16, initial=HALF)
    assert len(snn.sites) == 4
    logits = simulate(snn, x, 16).logits[0]
    ann = model(x).detach()
    accuracy = [(answer.argmax(1) == y).double().mean() for answer in (ann, logits)]
    assert accuracy[0] > 0.85
    assert accuracy[1] >= accuracy[0] - 0.02
    assert (logits - ann).abs().mean() < 0.1 * ann.abs().mean()
    prepared = prepare(model, "few-spikes")
    assert sum(isinstance(m, Smooth) for m in prepared.modules()) == 3
    torch.testing.assert_close(prepared.eval()(x), model(x))


@pytest.mark.parametrize("activation", [nn.SiLU(), nn.GELU(), nn.Sigmoid()], ids=str)
def test_other_methods_still_refuse_them(activation: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), activation, nn.Linear(4, 2)).eval()
    with pytest.raises(CaptureError, match="is not a ReLU"):
        convert(model, "max-norm", torch.randn(8, 4))
    network = capture(model, torch.randn(8, 4), handles=("silu", "gelu", "sigmoid"))
    assert isinstance(network.sites[0].activation, Smooth)


def test_a_table_with_fewer_steps_is_padded_and_one_is_chosen_by_its_range() -> None:
    def site(largest: float, **options: object) -> FewSpikes:
        model = nn.Sequential(nn.Linear(1, 1), nn.SiLU(), nn.Linear(1, 1)).eval()
        nn.init.ones_(model[0].weight)
        nn.init.zeros_(model[0].bias)
        snn = convert(model, "few-spikes", torch.tensor([[largest]]), **options)
        neuron = snn.neuron("1")
        assert isinstance(neuron, FewSpikes)
        return neuron

    padded = site(4.0, steps=10)
    assert padded.window == 10
    assert padded.digits[2, 8:].tolist() == [0, 0]
    near, far = (site(largest, steps=8) for largest in (4.0, 20.0))
    z = torch.tensor([20.0])
    assert abs(respond(far, z).item() * 8 - 20) < 1  # its amplitude is folded into the next layer
    assert abs(respond(near, z).item() * 8 - 20) > 5
    with pytest.warns(UserWarning, match=r"silu.*tables="):
        site(100.0, steps=8)
    with pytest.raises(ValueError, match=r"4 steps.*raise steps"):
        site(4.0, steps=4)
    own = few_spikes.Table("silu", (-8.0, 8.0), few_spikes.fit("silu", 4, (-8, 8), iterations=5))
    assert site(4.0, steps=4, tables=(own,)).window == 4
