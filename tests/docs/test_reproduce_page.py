"""What docs/reproduce.md says in words about other settings is what the records have."""

from pathlib import Path

import pytest

from rheobase.papers import records

ROOT = Path(__file__).parents[2]
RECORDS = records.load_all(ROOT / "results/opi2022")
PAGE = " ".join((ROOT / "docs/reproduce.md").read_text("utf-8").split())


def results(model: str, dataset: str, epochs: int, **settings: float) -> dict[int | str, float]:
    """Accuracies by step, and before conversion; of the paper's own settings but for those given."""
    own = {"clip_decay": 0.0005, "batch_size": 128, "start": 4.0}
    wanted = own | {"learning_rate": 0.1 if dataset == "cifar10" else 0.02} | settings
    (found,) = (
        r
        for r in RECORDS
        if (r.model, r.dataset, r.epochs, r.seed, r.method) == (model, dataset, epochs, 0, "opi")
        and r.table in ("study", "table 1", "table 2")
        and r.profile == "exact"
        and {**r.settings["recipe"], **r.settings["method"]}.items() >= wanted.items()
    )
    return {**found.accuracy, "ann": found.ann_accuracy}


def gains(model: str, dataset: str, epochs: int, changed: dict, **common: float) -> dict[int | str, float]:
    own = results(model, dataset, epochs, **common)
    other = results(model, dataset, epochs, **common, **changed)
    return {t: other[t] - own[t] for t in own.keys() & other.keys()}


def test_the_size_of_a_batch() -> None:
    half = {"batch_size": 64}
    short, full = (gains("resnet18", "cifar100", epochs, half) for epochs in (30, 300))
    assert 3 < short["ann"] < 4
    assert f"more than 3 points before conversion and {short[8]:.0f} at T = 8." in PAGE
    told = "{:.1f} points before conversion, {:.1f} at T = 32, and {:.0f} less at T = 8."
    assert told.format(full["ann"], full[32], -full[8]) in PAGE
    small = gains("resnet20", "cifar100", 150, half, start=2.0)
    told = "it is {:.1f} points before conversion, half a point at T = 32, and {:.0f} points less at T = 8."
    assert told.format(small["ann"], -small[8]) in PAGE
    assert small[32] == pytest.approx(0.5, abs=0.05)


def test_the_rate() -> None:
    fast = {"learning_rate": 0.1}
    large = gains("resnet18", "cifar100", 30, fast)
    smaller = results("resnet18", "cifar100", 30, batch_size=64)
    faster = results("resnet18", "cifar100", 30, **fast)
    small = gains("resnet20", "cifar100", 150, fast | {"clip_decay": 0.001})
    ahead = {t: faster[t] - smaller[t] for t in smaller}
    told = "ResNet-18 {:.1f} points more than the paper's, {:.1f} more than the smaller batch;"
    assert told.format(large["ann"], ahead["ann"]) in PAGE
    assert f"ResNet-20, with a penalty of 0.001, {small['ann']:.1f} more." in PAGE
    told = "ResNet-18 is then {:.1f} points ahead of the smaller batch, at T = 8 {:.1f} behind it."
    assert told.format(ahead[32], -ahead[8]) in PAGE


def test_the_penalty() -> None:
    vgg = gains("vgg16", "cifar100", 300, {"clip_decay": 0.002})
    resnet = gains("resnet20", "cifar100", 300, {"clip_decay": 0.005})
    assert "VGG-16 pays nothing for it, ResNet-20 a point before conversion." in PAGE
    assert vgg["ann"] >= 0
    assert resnet["ann"] == pytest.approx(-1, abs=0.05)
    short, full = (gains("resnet20", "cifar10", epochs, {"clip_decay": 0.002}) for epochs in (100, 300))
    assert f"it brought {short[8]:.0f} points at T = 8 in 100 epochs" in PAGE
    assert "next to nothing at T = 8 and 16, and at T = 32 and before conversion it cost half a point" in PAGE
    assert all(abs(full[t]) < 0.6 for t in (8, 16))
    assert all(full[t] < -0.5 for t in (32, "ann"))
