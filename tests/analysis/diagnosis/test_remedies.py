"""Remedies: each changes one thing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import build, inputs
from rheobase import Uniform, convert, methods
from rheobase.analysis.diagnosis import diagnose, remedies
from rheobase.methods import few_spikes
from rheobase.network.snn import SNN

pytestmark = pytest.mark.filterwarnings("ignore:site .* never activated")


def names_of_remedies(snn: SNN, model: nn.Module, x: Tensor, steps: int) -> set[str]:
    return {r.what for r in diagnose(model, snn, x, steps, progress=False).remedies}


def test_remedies_change_one_thing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = build("Plain"), inputs(8)
    asked: list[tuple[Any, Any]] = []

    def note(ann: nn.Module, method: Any, *given: Any, **options: Any) -> SNN:
        asked.append((method, options["initial"]))
        return convert(ann, method, *given, **options)

    monkeypatch.setattr(remedies, "convert", note)
    start = Uniform(0.25, 0.75, seed=3)
    snn = convert(model, "robust-norm", x, percentile=99, per_channel=True, initial=start)
    names = names_of_remedies(snn, model, x, 4)
    assert {n for n in names if "percentile" in n} == {f"percentile {p}" for p in (99.9, 99.99, 100)}
    assert all(method.per_channel and initial == start for method, initial in asked)
    asked.clear()
    names = names_of_remedies(convert(model, "hwang", x, steps=4), model, x, 8)
    assert "start half instead of searched(4)" in names
    assert "converted for 8 steps" in names
    # A start that belongs to the method is searched again for its steps, and goes along to another method.
    assert all(i is None if m.name == "hwang" else str(i) == "searched(4)" for m, i in asked)
    names = names_of_remedies(convert(model, "diehl", x, coding="constant"), model, x, 4)
    assert "robust-norm with a threshold for each channel instead of diehl" in names


def test_a_method_that_cannot_be_had_again_is_left_out() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.SiLU(), nn.Linear(4, 3)).eval()
    x = torch.rand(6, 8)
    table = max((t for t in few_spikes.tables() if t.function == "silu"), key=lambda t: t.steps)
    snn = convert(model, "few-spikes", x, steps=table.steps, tables=(table,))
    assert methods.restore(convert(model, "few-spikes", x, steps=table.steps).provenance) is not None
    assert methods.restore(snn.provenance) is None
    assert diagnose(model, snn, x, table.steps, progress=False).samples == 6
