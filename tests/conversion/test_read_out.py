"""Activations of the output are functions of sums, which no neuron rounds."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rheobase
from rheobase.network import Elementwise

SMOOTH = [
    nn.Sigmoid(), nn.Tanh(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Hardsigmoid(), nn.Hardswish(),
]  # fmt: skip


def body(*tail: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    head = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 8)
    return nn.Sequential(*head, *tail).eval()


def inputs(count: int = 9) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("activation", SMOOTH, ids=lambda a: str(a).lower())
def test_the_output_is_the_activation_of_the_scores(activation: nn.Module, tmp_path: Path) -> None:
    x, example = inputs(), inputs(2)
    snn = rheobase.convert(body(activation), "sigma-delta", example)
    scores = rheobase.convert(body(), "sigma-delta", example)
    assert snn.sites == scores.sites == ["1"]
    # In double precision and rounded once, by another routine than torch's in single precision.
    torch.testing.assert_close(snn.limit(x), activation(scores.limit(x)), rtol=1e-6, atol=1e-6)
    run = rheobase.simulate(snn, x, 32, at=[32])
    assert torch.equal(run.logits[-1], snn.limit(x))
    rheobase.verify(body(activation), snn, x)
    rheobase.save(snn, tmp_path / "net.safetensors")
    assert torch.equal(rheobase.load(tmp_path / "net.safetensors").limit(x), snn.limit(x))


class Two(nn.Module):
    """A gate that a layer reads, and two outputs, one of them reshaped."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate, self.a, self.b = (nn.Linear(6, 6) for _ in range(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.body(x).relu()
        x = x * torch.sigmoid(self.gate(x))
        return {"a": torch.tanh(self.a(x)).unflatten(1, (2, 3)), "b": torch.sigmoid(self.b(x))}


def test_what_layers_read_stays_a_site() -> None:
    torch.manual_seed(0)
    model, x = Two().eval(), torch.randn(32, 6)
    snn = rheobase.convert(model, "sigma-delta", x)
    assert snn.sites == ["relu", "sigmoid"]
    analog = [module.function for module in snn.module.modules() if isinstance(module, Elementwise)]
    assert analog == ["tanh", "sigmoid"]
    assert set(snn.split(snn.limit(x))) == {"a", "b"}
    rheobase.verify(model, snn, x)


def test_a_network_with_no_other_activation_keeps_its_neurons() -> None:
    model = nn.Sequential(nn.Linear(5, 3), nn.Sigmoid()).eval()
    assert rheobase.convert(model, "sigma-delta", torch.randn(9, 5)).sites == ["1"]


def test_methods_without_sums_keep_their_sites() -> None:
    snn = rheobase.convert(body(nn.SiLU()), "few-spikes", inputs())
    assert snn.sites == ["1", "4"]


def test_inspect_names_the_function() -> None:
    coverage = rheobase.inspect(body(nn.Sigmoid()), inputs(2), "sigma-delta")
    (line,) = [line for line in coverage.lines if line.name == "4"]
    assert "analog sigmoid" in line.becomes
    assert line.neurons == 0
    assert len(coverage.sites) == 1
    with pytest.raises(ValueError, match="convert by sigma-delta"):
        rheobase.convert(body(nn.Sigmoid()), calibration=inputs())


class Residual(nn.Module):
    """A residual sum that a layer reads, and a function of the output."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.a, self.b, self.c, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 4), last

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.a(x).relu()
        x = self.c(self.b(x) + x)
        return x, self.last(x)


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Softmax(1), nn.LayerNorm(4)], ids=str)
def test_a_function_of_the_output_asks_for_no_encoders(last: nn.Module) -> None:
    torch.manual_seed(0)
    model, x = Residual(last).eval(), torch.randn(9, 6)
    assert rheobase.convert(model, "sigma-delta", x).sites == ["relu"]
    assert len(rheobase.convert(model, "sigma-delta", x, encoders=True).sites) == 2
