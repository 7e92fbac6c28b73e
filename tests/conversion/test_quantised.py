"""Quantised networks convert without data, and the SNN is the quantised network."""

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn import quantized
from torch.ao.quantization import (
    DeQuantStub,
    FakeQuantize,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    QuantStub,
    disable_fake_quant,
    disable_observer,
    get_default_qat_qconfig,
    get_default_qat_qconfig_mapping,
)
from torch.ao.quantization.quantize_fx import prepare_qat_fx

from conftest import count_moved
from rheobase import convert, inspect, load, prepare, save, simulate, verify
from rheobase.conversion import CaptureError
from rheobase.network import Clip, Quantised, Rectifier, SigmaDelta, Smooth


def rounded(low: int = 0, high: int = 15, per_channel: bool = False) -> FakeQuantize:
    settings = {"quant_min": low, "quant_max": high, "dtype": torch.qint8 if low else torch.quint8}
    if per_channel:
        scheme = torch.per_channel_symmetric
        return FakeQuantize(MovingAveragePerChannelMinMaxObserver, qscheme=scheme, ch_axis=1, **settings)
    return FakeQuantize(MovingAverageMinMaxObserver, **settings)


def settle(model: nn.Module) -> nn.Module:
    """Observe some inputs and end the observation, as quantised training does."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            nn.init.uniform_(module.bias, -0.2, 0.2)
    model(torch.randn(64, 3, 8, 8))
    return model.apply(disable_observer).eval()


class Residual(nn.Module):
    """Signed roundings on the input and on a sum, roundings after ReLU, and quantised weights."""

    def __init__(self, per_channel: bool = False) -> None:
        super().__init__()
        self.input = rounded(-128, 127)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.after_first = rounded(0, 15)
        self.pool = nn.MaxPool2d(2)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.weights = rounded(-7, 7)
        self.sum = rounded(-8, 7, per_channel)
        self.after_sum = rounded(0, 15)
        self.last = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.after_first(self.relu(self.first(self.input(x)))))
        weight = self.weights(self.second.weight)
        x = self.sum(x + nn.functional.conv2d(x, weight, self.second.bias, padding=1))
        return self.last(self.after_sum(torch.relu(x)).flatten(1))


@pytest.mark.parametrize("per_channel", [False, True])
def test_a_fake_quantised_network_is_exact_without_data(per_channel: bool, tmp_path) -> None:  # type: ignore[no-untyped-def]
    model, x = settle(Residual(per_channel)), torch.randn(200, 3, 8, 8)
    snn = convert(model, "sigma-delta", example=x[:16])
    assert snn.sites == ["input", "after_first", "sum", "after_sum"]  # ReLUs are part of the roundings
    with torch.no_grad():
        expected = model(x)
    assert count_moved(snn.limit(x), expected) <= 1
    run = simulate(snn, x, 80, at=[80])
    assert count_moved(run.logits[0], snn.limit(x)) == 0
    assert verify(model, snn, x[:4]).passed
    save(snn, tmp_path / "snn.safetensors")
    assert torch.equal(load(tmp_path / "snn.safetensors").limit(x), snn.limit(x))


@pytest.mark.filterwarnings("ignore")  # torch's quantisation announces its end
def test_a_network_of_torchs_quantised_training() -> None:
    layers = [
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2),
        nn.ReLU(),
    ]
    plain = nn.Sequential(*layers, nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(128, 16))
    plain = plain.append(nn.ReLU()).append(nn.Linear(16, 4)).train()
    torch.manual_seed(0)
    x = torch.randn(100, 3, 8, 8)
    model = prepare_qat_fx(plain, get_default_qat_qconfig_mapping("fbgemm"), (x,))
    for _ in range(5):
        model(x)
    model.apply(disable_observer).eval()
    with torch.no_grad():
        expected = model(x)
    snn = convert(model, "sigma-delta", example=x[:16])
    assert len(snn.sites) == 7  # the input, three ReLUs, the second norm, what is flattened, the output
    assert count_moved(snn.limit(x), expected) <= 1


class Stubs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantise, self.dequantise = QuantStub(), DeQuantStub()
        self.first, self.relu, self.last = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Linear(144, 2)
        self.second, self.clip = nn.Conv2d(4, 4, 3, padding=1), nn.ReLU6()
        self.sum = quantized.FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(self.quantise(x)))
        x = self.sum.add_relu(self.clip(self.second(x)), x)
        return self.dequantise(self.last(x.flatten(1)))


@pytest.mark.filterwarnings("ignore")
def test_what_torchs_quantisation_leaves_behind() -> None:
    x, model = torch.rand(8, 3, 8, 8), Stubs().train()
    quantization.fuse_modules_qat(model, [["first", "relu"]], inplace=True)
    model.qconfig = get_default_qat_qconfig("fbgemm")
    quantization.prepare_qat(model, inplace=True)
    with pytest.raises(CaptureError, match=r"quantise.*no data"):
        convert(model, "sigma-delta", x)
    model(x)
    with pytest.raises(CaptureError, match="disable_observer"):
        convert(model, "sigma-delta", x)
    model.apply(disable_observer).eval()
    snn = convert(nn.DataParallel(model), "sigma-delta", example=x)  # without data: all sites are quantised
    assert count_moved(snn.limit(x), model(x).detach()) <= 1
    with pytest.raises(CaptureError, match=r"quantise \(Quantize\)[^$]*prepare_qat"):
        convert(quantization.convert(model), "sigma-delta", x)
    observed = Stubs().eval()
    observed.qconfig = quantization.get_default_qconfig("fbgemm")
    quantization.prepare(observed, inplace=True)(x)
    with pytest.raises(CaptureError, match=r"HistogramObserver[^$]*calibration"):
        convert(observed, "sigma-delta", x)


@pytest.mark.parametrize(
    ("low", "high", "zero"), [(0, 15, 0), (-8, 7, 0), (-7, 7, 0), (0, 255, 100), (0, 15, 11)]
)
@pytest.mark.parametrize("activation", [nn.Identity(), nn.ReLU(), nn.ReLU6()], ids=repr)
def test_every_range_of_a_function(low: int, high: int, zero: int, activation: nn.Module) -> None:
    class Rounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)
            self.activation = activation

        def forward(self, x: Tensor) -> Tensor:
            x = self.activation(self.first(x))
            return self.last(torch.fake_quantize_per_tensor_affine(x, 0.07, zero, low, high))

    torch.manual_seed(0)
    model, x = Rounded().eval(), 10 * torch.randn(500, 8)  # beyond both ends
    snn = convert(model, "sigma-delta")
    (neuron,) = snn.neurons.values()
    assert isinstance(neuron, SigmaDelta)
    assert neuron.threshold.item() == pytest.approx(0.07)
    with torch.no_grad():
        assert count_moved(snn.limit(x), model(x)) == 0
    assert count_moved(simulate(snn, x, 300, at=[300]).logits[0], snn.limit(x)) == 0


@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.SiLU()], ids=repr)
def test_a_rounded_smooth_function(activation: nn.Module) -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), activation, Quantised(Smooth("linear"), torch.tensor(0.03), -31, 31)
    )
    model = model.append(nn.Linear(16, 3)).eval()
    x = 3 * torch.randn(100, 8)
    snn = convert(model, "sigma-delta")
    assert snn.sites == ["2"]
    assert count_moved(snn.limit(x), model(x)) == 0


def test_other_methods_take_roundings_after_relu() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), Quantised(Smooth("linear"), torch.tensor(0.1), 0, 15))
    model, x = model.append(nn.Linear(16, 3)).eval(), torch.randn(100, 8)
    for name in ("robust-norm", "max-norm"):
        assert verify(model, convert(model, name, x), x).passed
    signed = settle(Residual())
    with pytest.raises(CaptureError, match=r"(?s)input.*negative.*sigma-delta"):
        convert(signed, "max-norm", torch.randn(8, 3, 8, 8))
    assert len(inspect(model, x).sites) == 1
    assert isinstance(prepare(model, "opi").get_submodule("2"), Clip)


def test_a_repeated_rounding_is_dropped() -> None:
    again = [Quantised(Smooth("linear"), torch.tensor(0.1), 0, high) for high in (15, 15, 31)]
    layers = [nn.Conv1d(2, 4, 1), nn.ReLU(), again[0], nn.MaxPool1d(2), again[1], nn.Flatten(), again[2]]
    model, x = nn.Sequential(*layers, nn.Linear(8, 3)).eval(), torch.randn(50, 2, 4)
    snn = convert(model, "sigma-delta", example=x)
    assert snn.sites == ["2"]
    assert count_moved(snn.limit(x), model(x)) == 0


def test_a_second_rounding_with_the_same_quantum_narrows_the_first() -> None:
    layers = [Quantised(Smooth("linear"), torch.tensor(0.1), low, 9) for low in (-9, 0)]
    model, x = nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3)).eval(), 2 * torch.randn(50, 4)
    snn = convert(model, "sigma-delta")
    assert snn.sites == ["2"]
    assert not snn.neuron("2").signed
    assert count_moved(snn.limit(x), model(x)) == 0


def fake(scale: object, zero: object = 0, low: int = 0) -> nn.Module:
    class Fake(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.layer(x))
            if isinstance(scale, float):
                return torch.fake_quantize_per_tensor_affine(x, scale, zero, low, 15)
            return torch.fake_quantize_per_channel_affine(x, scale, zero, 1, low, 15)

    return Fake().eval()


REFUSED = [
    (fake(0.0), r"\[?0\.0"),
    (fake(-0.5), r"-0\.5"),
    (fake(float("nan")), "nan"),
    (fake(0.1, 0, 3), "3 … 15"),
    (fake(torch.full((3,), 0.1), torch.tensor([0, 1, 0])), "zero points differ"),
    (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), rounded()), "observer"),
]


@pytest.mark.parametrize(("model", "fact"), REFUSED, ids=lambda value: str(value)[:20])
def test_roundings_that_make_no_sense(model: nn.Module, fact: str) -> None:
    if isinstance(model, nn.Sequential):
        model(torch.randn(8, 4))
    with pytest.raises(CaptureError, match=fact):
        convert(model.eval(), "sigma-delta")


def test_a_rounding_that_is_switched_off_has_no_effect() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU6(), rounded(), nn.Linear(3, 2))
    model(torch.randn(8, 4))
    model.apply(disable_observer).apply(disable_fake_quant).eval()
    snn, x = convert(model, "sigma-delta", levels=2**20), torch.randn(20, 4)
    assert isinstance(snn.neuron("1"), SigmaDelta)
    torch.testing.assert_close(snn.limit(x), model(x), atol=1e-4, rtol=0)


def test_a_quantum_must_be_a_positive_number() -> None:
    for quantum in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"{quantum}"):
            Quantised(Rectifier(), torch.tensor(quantum), 0, 15)
