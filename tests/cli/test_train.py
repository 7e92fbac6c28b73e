"""`rheobase train`, and what follows it."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import rheobase
from rheobase.io import read_weights
from rheobase.training import RECIPES, find_recipe

Cli = Callable[..., str]


def test_train_convert_evaluate(cli: Cli, tmp_path: Path) -> None:
    assert "w.safetensors" in cli("train", "small", "--epochs", "4", "--out", "w.safetensors")
    said = cli("convert", "small", "--weights", "w.safetensors", "--initial", "half")
    assert "3 sites, method opi, start half" in said
    said = cli(
        "evaluate", "snn.safetensors", "--steps", "8", "--limit", "100", "--record", "r.json",
        "--ann", "small", "--weights", "w.safetensors",
    )  # fmt: skip
    result = json.loads((tmp_path / "r.json").read_text())
    # Of 100 images an integer is right, of all 360 it would not be.
    assert result["ann_accuracy"] == round(result["ann_accuracy"]) > 60
    assert f"before conversion: {result['ann_accuracy']:.2f} %" in said
    assert result["evaluation"]["samples"] == 100
    assert len(result["evaluation"]["accuracy"]) == 8
    assert result["evaluation"]["accuracy"][-1] > 60
    assert result["command"].startswith("rheobase evaluate snn.safetensors")


def test_a_method_may_have_its_own_recipe(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, epochs in (("digits", 1), ("small-digits", 2), ("small-digits-qcfs", 3)):
        monkeypatch.setitem(RECIPES, name, find_recipe("digits").lasting(epochs))
    for method, epochs in (("qcfs", 3), ("opi", 2)):
        cli("train", "small", "--method", method, "--out", f"{method}.safetensors")
        assert read_weights(tmp_path / f"{method}.safetensors")[1]["recipe"]["epochs"] == epochs


def test_settings_of_the_method_travel_with_the_weights(cli: Cli, tmp_path: Path) -> None:
    train = ("train", "small", "--epochs", "1", "--method", "qcfs", "--out", "w.safetensors")
    assert "levels must be an integer" in cli(*train, "--setting", "levels=0", code=1)
    assert not (tmp_path / "w.checkpoint").exists()
    cli(*train, "--setting", "levels=4")
    again = cli(*train, code=1)  # what was trained with four levels does not pass for eight
    assert "another method: qcfs, start 8.0, levels 4 there and qcfs, start 8.0, levels 8 here" in again
    for method, settings in (
        ((), {"start": 8.0, "levels": 4}),
        (("--method", "max-norm"), {"per_channel": False}),
    ):
        cli("convert", "small", "--weights", "w.safetensors", *method)
        snn = rheobase.load(tmp_path / "snn.safetensors")
        assert snn.provenance.settings == settings


def test_what_became_of_the_checkpoint_is_said(cli: Cli) -> None:
    train = ("train", "small", "--epochs", "1", "--out", "w.safetensors")
    cli(*train)
    assert "finished before: no step was taken" in cli(*train)
    assert "another method: opi, start 4.0 there and tcl, start 4.0 here" in cli(
        *train, "--method", "tcl", code=1
    )


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "small", "--weights", "w.safetensors", "--method"),
        ("diagnose", "small", "--weights", "w.safetensors", "--method"),
        ("train", "small", "--epochs", "1", "--out", "w.safetensors", "--recipe"),
    ],
)
def test_an_empty_name_is_not_the_default(cli: Cli, words: tuple[str, ...]) -> None:
    """As from a variable that is not set."""
    if words[0] != "train":
        cli("train", "small", "--epochs", "1", "--out", "w.safetensors")
    assert f"unknown {words[-1].removeprefix('--')} ''" in cli(*words, "", code=1)


def test_a_folder_of_images_from_end_to_end(cli: Cli, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for place in ("train", "test"):
        for name, colour in (("dark", 40), ("bright", 200)):
            folder = tmp_path / "my images" / place / name
            folder.mkdir(parents=True)
            for i in range(30):
                image.new("RGB", (12, 12), (colour + i, colour, colour - i)).save(folder / f"{i}.png")
    train = ("train", "small", "--data", "my images", "--epochs", "2", "--out", "w.safetensors")
    assert "--recipe, such as digits" in cli(*train, code=1)
    assert "batches of all 60 images instead of 64" in cli(*train, "--recipe", "digits")
    given = ("--data", "my images", "--weights", "w.safetensors")
    assert "3 sites" in cli("convert", "small", *given)
    assert "my images, 3×12×12, 2 classes" in cli("evaluate", "snn.safetensors", "--steps", "2")
    untrained = cli("diagnose", "small", "--data", "my images", code=1)
    assert "my images" in untrained
    assert "--weights" in untrained
    advice = ("advise", "small", *given, "--steps", "4", "--samples", "40", "--out", "best.safetensors")
    said = re.search(r"`(rheobase evaluate .*?)`", cli(*advice))
    assert said is not None
    cli(*shlex.split(said[1])[1:])
    assert "3×12×12" in cli("evaluate", "snn.safetensors", "--data", "digits", code=1)
