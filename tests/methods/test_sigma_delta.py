import copy

import pytest
import torch
from torch import Tensor, nn

import rheobase
from rheobase.conversion import CaptureError
from rheobase.network import SigmaDelta

ACTIVATIONS = [
    nn.ReLU(), nn.ReLU6(), nn.LeakyReLU(0.2), nn.PReLU(6), nn.SiLU(), nn.GELU(), nn.GELU("tanh"),
    nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.Tanh(), nn.ELU(0.7),
]  # fmt: skip


class Gated(nn.Module):
    """A residual block with squeeze-and-excite, max-pooling, up-sampling and concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=6)
        self.gate = nn.Conv2d(6, 6, 1)
        self.up = nn.ConvTranspose2d(6, 6, 2, 2)
        self.head = nn.Linear(12, 4)
        self.pool, self.resize = nn.MaxPool2d(2), nn.Upsample(scale_factor=2)

    def forward(self, x: Tensor) -> Tensor:
        a = self.stem(x).relu()
        b = nn.functional.silu(self.depthwise(a) + a)
        c = b * torch.sigmoid(self.gate(b.mean((2, 3), keepdim=True)))
        pooled = nn.functional.relu(self.pool(c))
        joined = torch.cat([self.up(pooled).relu(), self.resize(pooled)], 1)
        return self.head(joined.mean((2, 3)))


def batch(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def network(activation: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), activation, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(54, 5)
    ).eval()


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: str(a).lower())
@pytest.mark.parametrize("sizes", [1, 3, "any"])
def test_at_silence_it_is_the_quantised_network(activation: nn.Module, sizes: int | str) -> None:
    model, x = network(activation), batch(9, 3, 8, 8)
    snn = rheobase.convert(model, "sigma-delta", x, levels=8, sizes=sizes)
    run = rheobase.simulate(snn, x, 40)
    assert run.left.max() < 40
    parts = [rheobase.simulate(snn, part, 40, at=[40]).logits[0] for part in x.split(4)]
    assert torch.equal(run.logits[-1], torch.cat(parts))
    assert torch.equal(run.logits[-1], snn.limit(x))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: str(a).lower())
def test_many_levels_are_the_ann(activation: nn.Module) -> None:
    model, x = network(activation), batch(9, 3, 8, 8)
    snn = rheobase.convert(model, "sigma-delta", x, levels=2**20, sizes="any", per_channel=False)
    torch.testing.assert_close(rheobase.simulate(snn, x, 4).logits[-1], model(x), rtol=1e-4, atol=1e-4)


class Normalised(nn.Module):
    """A block of a ConvNeXt: depthwise convolution, layer norm, linear layers, GELU, scale and sum."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.norm, self.expand, self.shrink = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale, self.head = nn.Parameter(torch.rand(8, 1, 1)), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.shrink(nn.functional.gelu(self.expand(inner))).permute(0, 3, 1, 2)
        out = x + self.scale * inner
        return self.head(nn.functional.layer_norm(out.mean((2, 3)), (8,)))


@pytest.mark.parametrize("block", [Gated, Normalised])
def test_sums_products_pools_and_norms_are_exact_at_silence(block: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = block().eval(), batch(6, 3, 8, 8)
    snn = rheobase.convert(model, "sigma-delta", x, levels=16, sizes=2)
    run = rheobase.simulate(snn, x, 200, at=[200])
    assert run.left.max() < 200
    assert torch.equal(run.logits[0], snn.limit(x))
    fine = rheobase.convert(model, "sigma-delta", x, levels=2**18, sizes="any")
    torch.testing.assert_close(rheobase.simulate(fine, x, 8).logits[-1], model(x), rtol=1e-3, atol=1e-4)
    with pytest.raises(CaptureError, match="sigma-delta"):
        rheobase.convert(model, "robust-norm", x)


class Cancelling(nn.Module):
    """Weights that cancel, so that rounding decides on which side of zero the factors of a product are."""

    def __init__(self) -> None:
        super().__init__()
        weights = [[0.1, 0.2, -0.3], [0.7, -0.1, -0.6], [1.1, -0.4, -0.7], [1, 0, 0]]
        self.register_buffer("ones", torch.ones(3, 1, dtype=torch.float64))
        self.register_buffer("weights", torch.tensor(weights, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        factors = nn.functional.linear(nn.functional.linear(x, self.ones).relu(), self.weights).view(-1, 2, 2)
        return (factors @ factors.mT).flatten(1)


@pytest.mark.parametrize("least", [0.1, 0.2, 0.3, 0.4, 0.5])
def test_sums_that_cancel_are_no_sign_of_a_wrong_network(least: float) -> None:
    for more in range(8):
        x = torch.linspace(least + more / 100, 1, 16, dtype=torch.float64)[:, None]
        snn = rheobase.convert(Cancelling().eval(), "sigma-delta", x, levels=64, initial="zero")
        assert torch.equal(rheobase.simulate(snn, x, 40).logits[-1], snn.limit(x))


def test_trained_clips_need_no_data() -> None:
    model, x = rheobase.prepare(network(nn.ReLU()), "opi"), batch(5, 3, 8, 8)
    snn = rheobase.convert(model.eval(), "sigma-delta", example=x, levels=16, sizes=4)
    neuron = snn.neurons[snn.sites[0]]
    assert isinstance(neuron, SigmaDelta)
    assert neuron.threshold.item() == pytest.approx(4.0 / 16)


def test_channels_silent_on_the_calibration_data_still_fire() -> None:
    model, x = network(nn.ReLU()), batch(5, 3, 8, 8)
    with torch.no_grad():
        model[0].bias[2] = -100.0
    snn = rheobase.convert(model, "sigma-delta", x)
    with torch.no_grad():
        assert not snn.dead
        torch.testing.assert_close(
            rheobase.simulate(snn, 30 * x, 20).logits[-1], snn.limit(30 * x), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"levels": 1}, "levels.*1"),
        ({"levels": 8.0}, "levels.*8.0"),
        ({"sizes": 0}, "sizes.*0"),
        ({"levels": 8, "sizes": 5}, "16.*8"),
        ({"sizes": "some"}, "some"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, object], facts: str) -> None:
    with pytest.raises((TypeError, ValueError), match=facts):
        rheobase.convert(network(nn.ReLU()), "sigma-delta", batch(4, 3, 8, 8), **settings)


@pytest.mark.parametrize(
    ("weight", "bias", "facts"),
    [
        (1.0, [-1e6] * 4, "'2' was 0 "),
        (0.0, [0.75] * 4, "'2' was 0.75 "),
        (0.0, [-1.0, 0.25, 0.5, 0.75], "'2'.* 0 to 0.75"),
    ],
)
@pytest.mark.parametrize("per_channel", [True, False])
def test_a_site_that_is_constant_on_the_calibration_data(
    weight: float, bias: list[float], facts: str, per_channel: bool
) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight *= weight
        model[1].bias.copy_(torch.tensor(bias))
    before = copy.deepcopy(model.state_dict())
    parts = [batch(1, 3, 8, 8), 2 * batch(1, 3, 8, 8)]
    with pytest.raises(ValueError, match=facts):
        rheobase.convert(model, "sigma-delta", parts, per_channel=per_channel)
    assert all(map(torch.equal, before.values(), model.state_dict().values()))
    x = torch.cat(parts)
    snn = rheobase.convert(model, "sigma-delta", x, quanta={"2": 0.25})
    assert torch.equal(rheobase.simulate(snn, x, 20).logits[-1], snn.limit(x))


def test_constant_channels_next_to_others_and_single_inputs_convert() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU(), nn.Linear(4, 2))
    with torch.no_grad():
        model[1].weight[1:] = 0
        model[1].bias.copy_(torch.tensor([9.0, 0.5, 0.75, -1.0]))
    for x in (batch(5, 3, 8, 8), batch(1, 3, 8, 8)):
        snn = rheobase.convert(model, "sigma-delta", x, levels=256, sizes=9)
        torch.testing.assert_close(snn.limit(x), model(x), rtol=0.02, atol=0.02)


def test_what_it_cannot_take() -> None:
    model, x = network(nn.ReLU()), batch(4, 3, 8, 8)
    with pytest.raises(ValueError, match="calibration="):
        rheobase.convert(model, "sigma-delta", example=x)
    for wrong, fact in (({"initial": "uniform"}, "uniform"), ({"coding": "poisson"}, "Poisson")):
        with pytest.raises(ValueError, match=fact):
            rheobase.convert(model, "sigma-delta", x, **wrong)
    with pytest.raises(ValueError, match="fire_above"):
        rheobase.convert(model, "sigma-delta", x, fire_above=True)
    with pytest.raises(CaptureError, match="sin"):
        rheobase.convert(Sine(), "sigma-delta", x)
    with pytest.raises(ValueError, match="delay=2"):
        rheobase.simulate(rheobase.convert(model, "sigma-delta", x), x, 8, delay=2)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin().relu()


def test_it_is_saved_with_levels_sizes_and_function(tmp_path) -> None:  # type: ignore[no-untyped-def]
    x = batch(5, 3, 8, 8)
    for activation in (nn.PReLU(6), nn.ReLU6(), nn.SiLU()):
        snn = rheobase.convert(network(activation), "sigma-delta", x, levels=9, sizes=2)
        rheobase.save(snn, tmp_path / "snn.safetensors")
        loaded = rheobase.load(tmp_path / "snn.safetensors")
        runs = [rheobase.simulate(s, x, 12) for s in (snn, loaded)]
        assert torch.equal(runs[0].logits, runs[1].logits)
        assert {k: v.tolist() for k, v in runs[0].spikes.items()} == {
            k: v.tolist() for k, v in runs[1].spikes.items()
        }


@pytest.mark.parametrize("quantum", [0.25, torch.tensor(0.25), [0.1, 0.2, 0.3, 0.4], torch.rand(4) + 0.1])
def test_given_quanta_need_no_data(quantum: object, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU6(), nn.Linear(5, 2)).eval()
    snn, x = rheobase.convert(model, "sigma-delta", quanta={"1": quantum}, levels=6, sizes=2), batch(20, 6)
    expected = torch.as_tensor(quantum)
    torch.testing.assert_close(snn.neuron("1").threshold, expected)
    first = (model[:2](x) / expected + 0.5).floor().clamp(max=6) * expected
    second = (model[2:4](first) + 0.5).floor().clamp(max=6)
    torch.testing.assert_close(snn.limit(x), model[4](second))
    rheobase.save(snn, tmp_path / "snn.safetensors")
    loaded = rheobase.load(tmp_path / "snn.safetensors")
    assert rheobase.methods.restore(loaded.provenance) == rheobase.methods.restore(snn.provenance)
    assert rheobase.verify(model, loaded, x).passed
    given = rheobase.convert(model, "sigma-delta", x, quanta={"1": quantum})  # data are for the other sites
    torch.testing.assert_close(given.neuron("1").threshold, expected)
    assert given.neuron("3").threshold.shape == (5,)


def test_given_quanta_replace_those_of_a_quantised_site() -> None:
    model = rheobase.prepare(nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)), "qcfs").eval()
    assert rheobase.convert(model, "sigma-delta").neuron("1").threshold == 1
    neuron = rheobase.convert(model, "sigma-delta", quanta={"1": 0.5}).neuron("1")
    assert (neuron.threshold.item(), neuron.levels) == (0.5, 32)


@pytest.mark.parametrize(
    ("quanta", "facts"),
    [
        ({"2": 0.1}, "'2'"),
        ({"1": 0.0}, "'1'.*0.0"),
        ({"1": [0.1, -0.2, 0.1, 0.1]}, "'1'.*-0.2"),
        ({"1": float("nan")}, "'1'.*nan"),
        ({"1": torch.ones(2, 2)}, "'1'"),
        ({"1": [0.1, 0.2]}, "'1' has 4 channels.*2 quanta"),
        ({"1": []}, "'1'"),
        ({"1": "fine"}, "'1'.*fine"),
    ],
)
def test_quanta_that_make_no_sense(quanta: dict[str, object], facts: str) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with pytest.raises((TypeError, ValueError), match=facts):
        rheobase.convert(model, "sigma-delta", batch(4, 6), quanta=quanta)


@pytest.mark.parametrize("levels", [8, 64])
def test_the_limit_is_computed_as_a_run_is(levels: int) -> None:
    torch.manual_seed(0)
    blocks = [m for _ in range(6) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())]
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.Flatten(), nn.Linear(288, 5)), batch(40, 3, 8, 8)
    snn = rheobase.convert(model, "sigma-delta", x, levels=levels, sizes=3)
    assert torch.equal(rheobase.simulate(snn, x, 100, at=[100]).logits[0], snn.limit(x))
    assert torch.equal(snn.limit(x)[:3], snn.limit(x[:3]))
    y = x[:2].clone().requires_grad_()
    assert torch.autograd.grad(snn.limit(y).sum(), y)[0].shape == y.shape


def test_a_channel_that_was_rarely_active_gets_a_wider_quantum() -> None:
    # The channels are active at 4, 4, 1 and 0 of four places; their largest values are 8, 4, 1 and 0.
    x = torch.tensor([[8.0, 4, 1, 0], [8, 4, 0, 0], [8, 4, 0, 0], [8, 2, 0, 0]])
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)).eval()
    model[0].weight.data = torch.eye(4)
    snn = rheobase.convert(model, "sigma-delta", x, levels=2, sizes=1)
    s = snn.neuron("1").threshold.flatten().tolist()
    # The quantum of least error is half the largest value, up to the width of a bin; the median is that of 4.
    assert s[0] == pytest.approx(4, rel=0.03)
    assert s[1] == pytest.approx(2, rel=0.03)
    assert s[2] == pytest.approx(0.5**0.25 * s[1] ** 0.75, rel=0.03)
    assert s[3] == pytest.approx(s[1])


def test_values_of_both_signs_keep_the_quantum_of_least_error() -> None:
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.01, 1, 2, 3])
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.PReLU(), nn.Linear(4, 2)).eval()
    model[0].weight.data = torch.eye(4)
    s = rheobase.convert(model, "sigma-delta", x).neuron("1").threshold.flatten()
    assert s[0] <= 1.03 * x[:, 0].abs().max() / 32
