"""The worked example in CONTRIBUTING.md: one file, and the method is there."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import rheobase
from rheobase import methods
from rheobase.methods import registry
from rheobase.training import datasets

TEXT = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()


def test_adding_a_method_touches_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: nn.Module, digits: datasets.Dataset
) -> None:
    found = re.search(r"<!-- test: methods/(\w+)\.py -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    assert found is not None
    name, code = found.groups()
    assert len(code.splitlines()) <= 45
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    registry._registry.cache_clear()
    try:
        assert "spread-norm" in methods.names()
        snn = rheobase.convert(trained, "spread-norm", digits.train.take(256), initial=rheobase.HALF)
        result = rheobase.evaluate(snn, digits.test, 16, progress=False)
        ann = (
            (trained(digits.test.normalise(digits.test.images)).argmax(1) == digits.test.labels)
            .double()
            .mean()
        )
        assert result.final_accuracy >= ann - 3
        assert torch.isfinite(torch.tensor(result.joules)).all()
    finally:
        registry._registry.cache_clear()
