"""The images of a command: files remember them, and nothing is normalised in silence."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import rheobase
from rheobase.analysis import accuracy
from rheobase.cli import options
from rheobase.cli.images import Images
from rheobase.io import save_weights
from rheobase.training import datasets
from rheobase.training.datasets.split import Dataset

Cli = Callable[..., str]


@pytest.fixture
def folder(digits: Dataset, tmp_path: Path) -> Path:
    """Digits as pictures: two classes of 34 pictures."""
    image = pytest.importorskip("PIL.Image")
    for half, split in (("train", digits.train), ("test", digits.test)):
        for label in (0, 1):
            place = tmp_path / "pictures" / half / "ab"[label]
            place.mkdir(parents=True)
            chosen = split.images[split.labels == label][:34, 0].numpy()
            for i, pixels in enumerate(chosen):
                image.fromarray(pixels).save(place / f"{i}.png")
    return tmp_path / "pictures"


def converted(model: nn.Module, digits: Dataset, path: str = "snn.safetensors") -> rheobase.SNN:
    snn = rheobase.convert(model, "max-norm", digits.train.take(50), initial="half")
    rheobase.save(snn, path)
    return snn


def test_what_was_used_is_remembered_and_shown(cli: Cli, trained: nn.Module, digits: Dataset) -> None:
    torch.save(trained.state_dict(), "w.pth")
    used = ("--mean", "0.25", "--std", "0.4")
    said = cli("convert", "small", "--weights", "w.pth", *used)
    assert "mean 0.25 (given) and std 0.4 (given)" in said
    data = rheobase.load("snn.safetensors").provenance.data
    assert (data["name"], data["mean"], data["std"]) == ("digits", (0.25,), (0.4,))
    assert data["classes"] == digits.classes
    said = cli("evaluate", "snn.safetensors", "--steps", "2", "--ann", "small", "--weights", "w.pth")
    assert "mean 0.25 (remembered) and std 0.4 (remembered)" in said
    test = replace(digits.test, mean=(0.25,), std=(0.4,))
    assert f"before conversion: {accuracy(trained, test):.2f} %" in said
    assert "mean 0.3 (given) and std 0.4 (remembered)" in cli(
        "evaluate", "snn.safetensors", "--steps", "2", "--mean", "0.3"
    )
    exported = cli("export", "snn.safetensors", "net.nir", "--samples", "2", "--steps", "2")
    assert "mean 0.25 (remembered) and std 0.4 (remembered)" in exported
    assert "mean 0.25 (remembered) and std 0.4 (remembered)" in cli(
        "evaluate", "net.nir", "--steps", "2", "--limit", "9"
    )


def test_trained_weights_remember_their_images(cli: Cli, folder: Path) -> None:
    train = ("train", "small", "--data", str(folder), "--recipe", "digits", "--epochs", "1", "--size", "12")
    cli(*train, "--mean", "0.5", "--out", "w.safetensors", "--device", "auto")
    assert "1×12×12, 2 classes" in (said := cli("convert", "small", "--weights", "w.safetensors"))
    assert "mean 0.5 (remembered) and" in said
    assert rheobase.load("snn.safetensors").provenance.data["size"] == 12
    folder.rename(folder.with_name("moved"))
    assert "--data" in cli("evaluate", "snn.safetensors", code=1)
    cli("evaluate", "snn.safetensors", "--steps", "2", "--data", "moved")


def test_one_value_for_all_channels() -> None:
    images, labels = torch.zeros(1, 3, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    split = datasets.Split(images, labels, (0.1,) * 3, (0.2,) * 3)
    chosen = Images(mean="0.5")._normalised(split, {"std": [0.3, 0.4, 0.5]})
    assert (chosen.mean, chosen.std) == ((0.5,) * 3, (0.3, 0.4, 0.5))


def test_a_network_that_remembers_nothing(cli: Cli, trained: nn.Module, digits: Dataset) -> None:
    snn = converted(trained, digits)
    said = cli("evaluate", "snn.safetensors", "--steps", "2", "--limit", "9")
    assert "mean 0.2874 (of digits)" in said
    snn.input_shape = (3, 32, 32)
    snn.module.get_submodule("0").weight = nn.Parameter(torch.zeros(16, 3, 3, 3))
    snn.module.get_submodule("12").weight = nn.Parameter(torch.zeros(10, 2048))
    for module in (snn.module.get_submodule("0"), snn.module.get_submodule("12")):
        module.in_channels = 3
        module.in_features = 2048
    rheobase.save(snn, "snn.safetensors")
    said = cli("evaluate", "snn.safetensors", code=1)
    assert "3×32×32" in said
    assert "1×8×8" in said


def test_other_numbers_of_classes_are_said(cli: Cli, trained: nn.Module, folder: Path) -> None:
    save_weights(trained, "w.safetensors")
    cli("convert", "small", "--weights", "w.safetensors")
    given = ("--data", str(folder))
    said = cli("evaluate", "snn.safetensors", *given, "--steps", "2")
    assert "10 outputs, and pictures has 2 classes" in said
    assert "0, 1, 2, 3 and 6 more, and pictures has a, b" in said
    Path("seeded.py").write_text(
        "import torch\nfrom rheobase.training import models\n"
        "def build():\n    torch.manual_seed(0)\n    return models.build('small')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path.cwd())
        assert "10 outputs, and pictures has 2 classes" in cli("convert", "seeded:build", *given)


def test_random_weights_must_be_asked_for(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "loose.py").write_text(
        "from rheobase.training import models\ndef build():\n    return models.build('small')\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        said = cli("convert", "loose:build", code=1)
        assert "loose:build has random weights" in said
        assert "random weights" in cli("advise", "loose:build", "--steps", "2", code=1)
        assert not (tmp_path / "snn.safetensors").exists()
        cli("convert", "loose:build", "--random-weights")
    assert (tmp_path / "snn.safetensors").exists()


def test_the_default_device_is_a_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for present, device in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda present=present: present)
        assert options.check_device("auto") == device


def test_grey_pictures_for_networks_of_rgb_images(cli: Cli, folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2)).eval()
    grey = datasets.load(str(folder))
    assert grey.train.images.shape[1] == 1
    rgb = grey.test.to_rgb()
    assert torch.equal(rgb.normalise(rgb.images)[:, 2:], grey.test.normalise(grey.test.images))
    assert rgb.to_rgb() is rgb
    snn = rheobase.convert(model, "max-norm", grey.train.to_rgb())
    rheobase.save(snn, "snn.safetensors")
    said = cli("evaluate", "snn.safetensors", "--data", str(folder), "--steps", "2")
    assert "3×8×8" in said
    assert f"{rheobase.evaluate(snn, rgb, 2).accuracy[-1]:.1f}" in said
    said = cli("convert", "resnet20-cifar10", "--data", str(folder), code=1)
    assert "1×8×8" in said
    assert "--data" in said
    assert "colour" in said
