"""Methods by name: unknown names, wrong settings, and the method of a converted network."""

import pytest
import torch
from torch import nn

from rheobase import convert, methods
from rheobase.methods import few_spikes, hybrid


def test_unknown_names_and_settings() -> None:
    with pytest.raises(ValueError, match=r"max-nrom.*max-norm"):
        methods.get("max-nrom")
    with pytest.raises(TypeError, match=r"'per_chanel' of max-norm.*'per_channel'"):
        methods.get("max-norm", per_chanel=True)
    with pytest.raises(TypeError, match="max-norm"):
        methods.get(methods.find("max-norm"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="factor"):
        methods.get(hybrid.Hybrid(), factor=0.5)


WRONG = [
    ("calibration", {"steps": 0}, "steps.*got 0"),
    ("calibration", {"steps": 8, "pipeline": "heavy"}, "'heavy'.*none, light"),
    ("calibration", {"steps": 8, "rounds": 0}, "rounds.*got 0"),
    ("calibration", {"steps": 8, "learning_rate": 0.0}, "learning_rate.*got 0"),
    ("diehl", {"basis": "max"}, "basis.*'max'"),
    ("diehl", {"reset": "soft"}, "reset.*'soft'"),
    ("diehl", {"low": 1.0}, "low.*1.0"),
    ("few-spikes", {"steps": 0}, "steps.*got 0"),
    ("few-spikes", {"percentile": 0.0}, "percentile.*got 0"),
    ("hwang", {"steps": 0}, "steps.*got 0"),
    ("hybrid", {"factor": 0.0}, "factor.*got 0"),
    ("hybrid", {"steps": 0}, "steps.*got 0"),
    ("opt", {"steps": 0}, "steps.*got 0"),
    ("opt", {"steps": 8, "ceiling": -1.0}, "ceiling.*got -1"),
    ("rmp", {"factor": -1}, "factor.*got -1"),
    ("rmp", {"percentile": 0}, "percentile.*got 0"),
    ("rmp", {"steps": 0}, "got 0"),
    ("robust-norm", {"percentile": 101}, "percentile.*got 101"),
    ("robust-norm", {"over": "positive"}, "over.*'positive'"),
    ("robust-norm", {"max_pool": "avg"}, "max_pool.*'avg'"),
    ("spike-norm", {"steps": 0}, "steps.*got 0"),
    ("tsc", {"window": 1}, "window.*got 1"),
    ("tsc", {"hidden": "strict"}, "hidden.*'strict'"),
]


@pytest.mark.parametrize(("name", "settings", "facts"), WRONG, ids=lambda value: str(value))
def test_wrong_values_are_refused(name: str, settings: dict[str, object], facts: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{facts}" if name != "hwang" else facts):
        methods.get(name, **settings)


@pytest.mark.parametrize("steps", [True, 2.5, "4"])
@pytest.mark.parametrize("name", ["spike-norm", "signed", "opt", "hmt"])
def test_a_class_takes_no_number_of_steps_that_is_no_integer(name: str, steps: object) -> None:
    with pytest.raises(ValueError, match=f"{name}: steps must be an integer.*got {steps!r}"):
        methods.find(name)(steps=steps)


def test_values_of_a_wrong_type_and_missing_ones_are_refused() -> None:
    with pytest.raises(TypeError, match=r"percentile.*'high'"):
        methods.get("robust-norm", percentile="high")
    with pytest.raises(TypeError, match=r"per_channel.*'maybe'"):
        methods.get("max-norm", per_channel="maybe")
    with pytest.raises(TypeError, match=r"factor.*True"):
        methods.get("rmp", factor=True)
    with pytest.raises(TypeError, match="steps="):
        methods.get("opt")
    assert methods.get("rmp", factor=1) == methods.get("rmp", factor=1.0)


def test_the_method_of_a_network_is_restored() -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.SiLU(), nn.Linear(4, 3)).eval(), torch.rand(6, 8)
    table = max((t for t in few_spikes.tables() if t.function == "silu"), key=lambda t: t.steps)
    plain = convert(model, "few-spikes", x, steps=table.steps)
    assert methods.restore(plain.provenance) == methods.get("few-spikes", steps=table.steps)
    own = convert(model, "few-spikes", x, steps=table.steps, tables=(table,))
    assert methods.restore(own.provenance) is None  # a table is a dictionary there
