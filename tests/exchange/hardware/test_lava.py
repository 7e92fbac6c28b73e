"""Without lava-nc, or for networks it cannot run, the result says why; tests/interop runs it."""

import sys
from pathlib import Path

import pytest

from hardware_examples import Branches, converted, labelled, layer
from rheobase.exchange.hardware import check_hardware, lava, targets

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def test_the_result_says_why_lava_is_not_available(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snn = converted(*layer(2, 2, count=2), shape=(2, 4, 4), coding=None)

    def report(input_bits: int = 3) -> str:
        return str(check_hardware(snn, "loihi", labelled(snn, 2), steps=2, input_bits=input_bits))

    monkeypatch.delenv(lava.VARIABLE, raising=False)
    assert "not run in lava-nc's fixed-point model: RHEOBASE_LAVA is not set" in report()
    monkeypatch.setenv(lava.VARIABLE, str(tmp_path / "nowhere"))
    assert "nowhere, which does not exist" in report()
    monkeypatch.setenv(lava.VARIABLE, sys.executable)  # a Python without lava-nc
    assert "No module named 'lava'" in report()


def test_the_result_says_why_lava_cannot_run_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_network_with_a_delay_gets_as_far(monkeypatch: pytest.MonkeyPatch) -> None:
    snn = converted(*layer(2, 2, count=2), shape=(2, 4, 4), coding=None)
    snn.delay = 1
    monkeypatch.setenv(lava.VARIABLE, sys.executable)
    result = check_hardware(snn, "loihi", labelled(snn, 2), steps=2, input_bits=3)
    assert result.simulated is not None
    assert "No module named 'lava'" in result.simulated.skipped


def test_differing_spikes_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    snn = converted(*layer(2, 2, count=2), shape=(2, 4, 4), coding=None)
    data = labelled(snn, 2)
    monkeypatch.setattr(targets, "compare_spikes", lambda *given: (10, 0))
    assert check_hardware(snn, "loihi", data, steps=2, input_bits=3).fits
    monkeypatch.setattr(targets, "compare_spikes", lambda *given: (10, 1))
    result = check_hardware(snn, "loihi", data, steps=2, input_bits=3)
    assert not result.fits
    assert "1 of 10 decisions to fire differ" in str(result)
