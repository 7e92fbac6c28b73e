"""Coverage: what each call becomes, and what is unsupported."""

import pytest
from torch import nn

from families import build, inputs
from rheobase import inspect
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
