"""The networks that commands name."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rheobase
from rheobase.cli import models
from rheobase.io import save_weights
from rheobase.training import RECIPES
from rheobase.training.datasets.split import Dataset


def test_a_model_is_built_for_its_images(digits: Dataset) -> None:
    network = models.build_for("small", digits)
    assert network.training
    image = digits.train.normalise(digits.train.images[:2])
    assert network(image).shape == (2, 10)
    with pytest.raises(ValueError, match=r"resnet20.*digits.*1×8×8"):
        models.build_for("resnet20", digits)


def test_weights_bring_the_activations_they_were_trained_with(
    clipped: nn.Module, digits: Dataset, tmp_path: Path
) -> None:
    file = tmp_path / "w.safetensors"
    save_weights(clipped, file, {"method": "opi"})
    assert models.method_for("small", file) == "opi"
    loaded = models.load("small", file, digits)
    x = digits.test.normalise(digits.test.images[:8])
    assert torch.equal(loaded(x), clipped(x))
    assert not loaded.training


@pytest.mark.parametrize(
    ("metadata", "fact"),
    [
        ({"method": None}, "method should be text, got None"),
        ({"method": "opj"}, "opj"),
        ({"method": "opi", "settings": [1]}, "settings should be"),
        ({"method": "opi", "settings": {"strat": 1}}, "strat"),
        ({"data": 3}, "data should be"),
        ({"data": {"name": "digits", "std": 3}}, r"data\.std should be a list"),
        ({"data": {"name": "digits", "mean": [None]}}, r"data\.mean\[0\] should be a number"),
        ({"data": {"name": "digits", "root": 5}}, r"data\.root should be text"),
        ({"data": {"name": ".", "size": "x"}}, r"data\.size should be an integer"),
        ({"model": "vgg16", "classes": 3}, "weights of vgg16, not of small"),
        ({"kind": "rheobase training, version 1"}, "checkpoint of a training"),
        ({"format": "rheobase-snn"}, "converted already"),
    ],
)
def test_metadata_that_does_not_fit_is_refused_with_the_file(
    clipped: nn.Module, digits: Dataset, tmp_path: Path, metadata: dict[str, Any], fact: str
) -> None:
    file = tmp_path / "w.safetensors"
    save_weights(clipped, file, metadata)
    with pytest.raises(ValueError, match=rf"w\.safetensors.*{fact}"):
        models.load("small", file, digits)
    with pytest.raises(ValueError, match=rf"w\.safetensors.*{fact}"):
        models.images_of("small", file)


def test_other_metadata_is_ignored(trained: nn.Module, digits: Dataset, tmp_path: Path) -> None:
    save_weights(trained, tmp_path / "w.safetensors", {"kind": "best", "format": 3, "run": [1]})
    models.load("small", tmp_path / "w.safetensors", digits)


def test_a_checkpoint_is_not_a_spiking_network(trained: nn.Module, tmp_path: Path) -> None:
    save_weights(trained, tmp_path / "w.checkpoint", {"kind": "rheobase training, version 1"})
    with pytest.raises(ValueError, match=r"w\.checkpoint.*checkpoint of a training"):
        models.load_spiking(tmp_path / "w.checkpoint")


def test_networks_with_a_window_are_simulated_for_it(
    cli: Callable[..., str], trained: nn.Module, digits: Dataset
) -> None:
    free = rheobase.convert(trained, "max-norm", digits.train.take(16))
    assert models.choose_steps(free, None, 32) == 32
    assert models.choose_steps(free, 5, 32) == 5
    windowed = rheobase.convert(trained, "few-spikes", digits.train.take(16))
    assert models.choose_steps(windowed, None, 32) == models.choose_steps(windowed, 10, 32) == 10
    with pytest.raises(ValueError, match="pass --steps 10"):
        models.choose_steps(windowed, 32, 32)
    rheobase.save(windowed, "snn.safetensors")
    assert "over 10 steps" in cli("evaluate", "snn.safetensors", "--limit", "9")
    save_weights(trained, "w.safetensors")
    assert "after T = 10 on" in cli(
        "diagnose", "small", "--weights", "w.safetensors", "--method", "few-spikes", "--no-remedies"
    )


def test_the_same_images_each_time(digits: Dataset) -> None:
    assert models.take(digits.test, None) is models.take(digits.test, 10_000) is digits.test
    assert torch.equal(models.take(digits.test, 5).images, models.take(digits.test, 5).images)


def test_a_network_that_is_trained_first_is_the_same_every_time(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RECIPES, "digits", replace(RECIPES["digits"], epochs=1, warmup_epochs=0))
    first, again = (models.load_or_train("small", None, digits).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_a_nir_file_may_have_any_name(digits: Dataset, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    snn = rheobase.convert(model, "max-norm", digits.train.take(16))
    rheobase.to_nir(snn, tmp_path / "net.h5")
    assert models.load_spiking(tmp_path / "net.h5").sites == snn.sites
    with pytest.raises(FileNotFoundError, match=r"none\.h5"):
        models.load_spiking(tmp_path / "none.h5")
