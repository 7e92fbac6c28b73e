"""`rheobase inspect`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import rheobase
from rheobase import methods as registry
from rheobase.training import models

Cli = Callable[..., str]


def test_a_built_in_network_is_made_for_the_shape(cli: Cli) -> None:
    assert "3 sites" in cli("inspect", "small", "--shape", "2,16,16")
    assert "19 sites" in cli("inspect", "resnet20")


def test_what_is_refused_is_named_with_its_remedy(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GELU(), nn.Flatten(), nn.Linear(144, 3))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said = cli("inspect", "mine:build", "--shape", "1,8,8", code=1)
    assert "REFUSED: GELU" in said
    assert "nn.ReLU" in said
    (tmp_path / "gates.py").write_text(
        "from torch import nn\nclass Gates(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.swish = nn.Hardswish()\n"
        "    def forward(self, x):\n        x = nn.functional.silu(x)\n        return self.swish(x)\n"
    )
    said = cli("inspect", "gates:Gates", "--shape", "3", code=1)
    handlers = [name for name in registry.names() if "silu" in registry.find(name).example().handles]
    assert handlers
    assert said.count(" or ".join(handlers)) == 1  # for silu; hard-swish has none
    assert "gates.py:7" in said
    assert "gates.py:8" in said
    with pytest.raises(ValueError, match=r"silu.*gates.py:7"):
        rheobase.convert(models.build("gates:Gates"), "max-norm", torch.rand(4, 3))
