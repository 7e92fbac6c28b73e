"""Coverage: what each call becomes, and what is unsupported."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from families import build, inputs
from rheobase import convert, inspect, prepare, to_nir
from rheobase.conversion import CaptureError, capture


def test_coverage_counts_neurons_and_operations() -> None:
    coverage = inspect(build("Plain"), inputs())
    assert [line.neurons for line in coverage.sites] == [6 * 64, 8 * 4, 12]
    assert sum(line.operations for line in coverage.lines) == 6 * 64 * 27 + 8 * 4 * 54 + 32 * 12 + 12 * 5
    assert "3 sites" in str(coverage)
    refused = inspect(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.GELU()), inputs())
    assert str(refused).splitlines()[-1].startswith("1 unsupported call")
    assert repr(refused) == str(refused)
    with pytest.raises(TypeError, match="NoneType"):
        inspect(build("Plain"), None)  # type: ignore[arg-type]


def test_calls_have_the_names_of_the_converted_network() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.relu = nn.Linear(4, 4), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.relu(self.layer(x))
            return torch.relu(x + 1)

    x = torch.rand(8, 4)
    coverage, snn = inspect(Shared().eval(), x), convert(Shared().eval(), "max-norm", x)
    assert [line.name for line in coverage.sites] == snn.sites == ["relu", "relu_2", "relu_3", "relu_4"]
    assert len({line.name for line in coverage.lines}) == len(coverage.lines)


def test_what_converts_but_cannot_be_exported_is_said_with_what_works(tmp_path: Path) -> None:
    x = torch.rand(8, 1, 8, 8)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
    model = nn.Sequential(*layers).eval()
    coverage = inspect(model, x)
    assert coverage.convertible
    assert [line.name for line in coverage.lines if line.no_export] == ["2"]
    assert "2 (nn.MaxPool2d)" in (said := str(coverage))
    assert "rheobase.prepare(model)" in said
    with pytest.raises(ValueError, match=r"2 \(MaxPool\).*rheobase\.prepare\(model\)"):
        to_nir(convert(model, calibration=x), tmp_path / "net.nir")
    average = prepare(model).eval()  # what was said; a user would train it
    assert "hardware" not in str(inspect(average, x))
    to_nir(convert(average, calibration=x), tmp_path / "net.nir")


def test_it_prints_nothing_itself(capsys: pytest.CaptureFixture[str]) -> None:
    inspect(build("Plain"), inputs())
    assert capsys.readouterr() == ("", "")


def test_all_refusals_are_named_at_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.Tanh(), nn.ReLU())
    coverage = inspect(model, inputs())
    assert [line.name for line in coverage.refused] == ["1", "3"]
    assert not coverage.convertible
    with pytest.raises(CaptureError, match=r"(?s)nn\.SiLU.*nn\.Tanh"):
        capture(model, inputs())
