"""The script that trains, converts and measures transformers, and the tables made of its records."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from rheobase.io import read_document, save_weights
from rheobase.training import Split, datasets, models
from tools import sigma_delta, transformers


def test_one_call_trains_converts_and_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randint(0, 256, (24, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    split = Split(images.to(torch.uint8), torch.arange(24) % 10, (0.5,) * 3, (0.25,) * 3)
    dataset = datasets.Dataset("cifar10", tuple("0123456789"), split, split)
    monkeypatch.setattr(transformers.datasets, "load", lambda *_: dataset)
    small = partial(models.build, width=16, depth=1, heads=2)
    monkeypatch.setattr(transformers.models, "build", small)
    monkeypatch.setattr(transformers, "SETTINGS", ((8, 3),))
    monkeypatch.setenv("RHEOBASE_COMMIT", "abc")
    options = "vit --epochs 2 --limit 20 --calibration 16 --device cpu --eager"
    monkeypatch.setattr(sys, "argv", ["transformers", *options.split(), "--out", str(tmp_path)])
    transformers.main()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"transformer-vit-cifar10-L8-n3-{profile}.json" for profile in ("exact", "int8")]
    weights = tmp_path / "weights.safetensors"
    save_weights(small("vit", 10), weights)
    more = ["--weights", str(weights), "--profiles", "int8", "--out", str(tmp_path / "more")]
    monkeypatch.setattr(sys, "argv", ["transformers", *options.split(), *more])
    transformers.main()
    assert len(list((tmp_path / "more").iterdir())) == 1
    record = read_document(sigma_delta.SumRecord, tmp_path / names[0])
    assert (record.samples, record.calibration, record.unequal) == (20, 16, 0)
    assert record.equal[-1] == 100
    monkeypatch.setattr(sigma_delta, "RECORDS", tmp_path)
    assert "ViT on CIFAR-10, 2 epochs" in transformers.measured()


def test_the_table_of_architectures_says_where_bits_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {
        "network": "Net", "input": "3 × 8 × 8", "sites": 2, "neurons": 1234, "silent": 7, "exact": True,
        "int8": False, "fine": 3e-6, "share": 99.5, "multiplications": 5000, "events": 1.25, "analog": 77,
        "evaluated": 3.5,
    }  # fmt: skip
    kept = {"rows": [row], "levels": 32, "sizes": 5, "device": "CPU", "torch": "2"}
    monkeypatch.setattr(transformers, "read", lambda name: kept)
    shown = transformers.architectures()
    for fact in ("1,234", "equal", "differs", "3e-06", "99.5 %", "1.25", "3.50 times"):
        assert fact in shown
