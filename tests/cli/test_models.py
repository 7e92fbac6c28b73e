"""The networks that commands name."""

from dataclasses import replace
from pathlib import Path

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
