"""Checkpoints: training resumes to the same bits, or refuses another training's file."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import nn

from rheobase.io import digest, read_tensors, save_weights, write_tensors
from rheobase.network import Clip, QuantisedClip
from rheobase.training import Recipe, step, trainer
from rheobase.training.state import TrainingState, finished_recipe
from textures import QUICK, alarmed, equal, network, quietly, textures, without_seconds

LONG = replace(QUICK, epochs=20)


@pytest.mark.parametrize("call", [1, 3, 4, 5, 12])
def test_ctrl_c_saves_the_step_and_the_rest_gives_the_same_bits(tmp_path: Path, call: int) -> None:
    path = tmp_path / "last.safetensors"
    whole = quietly(alarmed(0), textures(), QUICK)
    with pytest.raises(KeyboardInterrupt):
        quietly(alarmed(call), textures(), QUICK, checkpoint=path)
    resumed = quietly(alarmed(0), textures(), QUICK, checkpoint=path)
    assert equal(whole.model, resumed.model)
    assert without_seconds(whole) == without_seconds(resumed)
    assert resumed.notes[0].startswith("resumed after epoch ")


@pytest.mark.parametrize(("seconds", "expected"), [(0.0, [1, 2, 3]), (60.0, [3])])
def test_checkpoints_are_at_least_a_minute_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    saved: list[int] = []
    monkeypatch.setattr(trainer, "_SECONDS_BETWEEN_CHECKPOINTS", seconds)
    monkeypatch.setattr(TrainingState, "save", lambda self: saved.append(self.epoch))
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    assert saved == expected


@pytest.mark.parametrize("save_every", [1, 3, 4, 7, 100])
def test_how_often_it_is_saved_changes_nothing(tmp_path: Path, save_every: int) -> None:
    whole = quietly(network(), textures(), QUICK)
    path = tmp_path / "last.safetensors"

    def stop(epoch: object, model: nn.Module) -> None:
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            quietly(network(), textures(), QUICK, checkpoint=path, save_every=save_every, on_epoch=stop)
    resumed = quietly(network(), textures(), QUICK, checkpoint=path, save_every=save_every)
    assert equal(whole.model, resumed.model)
    assert without_seconds(whole) == without_seconds(resumed)


def test_a_finished_training_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last", save_every=100)
    monkeypatch.setattr(step.Learner, "step", lambda *_: pytest.fail("a step was taken"))
    second = quietly(network(1), textures(), QUICK, checkpoint=tmp_path / "last")
    assert equal(first.model, second.model)
    assert first.history == second.history


@pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
def test_another_recipe_is_refused_by_name(tmp_path: Path, name: str) -> None:
    other: dict[str, Any] = {
        "schedule": "constant", "augment": None, "precision": "bfloat16", "compile": True,
        "momentum": 0.8, "label_smoothing": 0.1, "warmup_epochs": 1, "seed": 6,
        "optimiser": "adamw", "decayed": "kernels", "cutout": "before", "deterministic": True,
    }  # fmt: skip
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    value = other[name] if name in other else getattr(QUICK, name) * 2
    with pytest.raises(ValueError, match=rf"another recipe: {name} .* there and {value!r} here"):
        quietly(network(), textures(), replace(QUICK, **{name: value}), checkpoint=tmp_path / "last")


def test_another_dataset_is_refused_by_name(tmp_path: Path) -> None:
    data = textures()
    quietly(network(), data, QUICK, checkpoint=tmp_path / "last")
    with pytest.raises(ValueError, match=r"another dataset: .*size is 70 there and 71 here"):
        quietly(network(), textures(71), QUICK, checkpoint=tmp_path / "last")
    swapped = replace(data, images=data.images.flip(0), labels=data.labels.roll(1))
    with pytest.raises(ValueError, match=r"another dataset: .*labels_crc32"):
        quietly(network(), swapped, QUICK, checkpoint=tmp_path / "last")
    with pytest.raises(ValueError, match="another dataset: images_crc32"):
        quietly(network(), replace(data, images=255 - data.images), QUICK, checkpoint=tmp_path / "last")
    with pytest.raises(ValueError, match=r"another dataset: mean .* there and \[0.9\] here"):
        quietly(network(), replace(data, mean=(0.9,)), QUICK, checkpoint=tmp_path / "last")


def test_a_checkpoint_that_says_less_of_its_data_is_taken(tmp_path: Path) -> None:
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    tensors, kept = read_tensors(tmp_path / "last")
    kept["dataset"] = {name: kept["dataset"][name] for name in ("size", "labels_crc32")}
    kept.pop("digest")
    write_tensors(tmp_path / "last", tensors, kept)
    again = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    assert again.notes == ("finished before: no step was taken",)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    other = network()
    other[5] = nn.Linear(144, 4)
    with pytest.raises(ValueError, match=r"another architecture: model\.5\.weight is \(3, 144\)"):
        quietly(other, textures(), QUICK, checkpoint=tmp_path / "last")


def test_another_method_is_refused_by_name(tmp_path: Path) -> None:
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last", trained_for="opi")
    with pytest.raises(ValueError, match="another method: opi there and tcl here"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last", trained_for="tcl")
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")  # which is not said to be for another


def test_other_levels_are_refused_and_other_buffers_of_that_name_are_not(tmp_path: Path) -> None:
    def clipped(levels: int) -> nn.Module:
        model = network()
        model[2] = QuantisedClip(2.0, levels)
        model.register_buffer("levels", torch.arange(3.0))
        return model

    quietly(clipped(4), textures(), QUICK, checkpoint=tmp_path / "last")
    quietly(clipped(4), textures(), QUICK, checkpoint=tmp_path / "last")
    with pytest.raises(ValueError, match=r"number of levels: model\.2\.levels is 4 there and 8 here"):
        quietly(clipped(8), textures(), QUICK, checkpoint=tmp_path / "last")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    save_weights(network(), tmp_path / "weights")
    with pytest.raises(ValueError, match="weights is not a training checkpoint"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "weights")
    (tmp_path / "torn").write_bytes((tmp_path / "weights").read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"torn.*safetensors.*remove it"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "torn")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "last"
    quietly(network(), textures(), QUICK, checkpoint=path)
    return path


@pytest.mark.parametrize(
    ("part", "value", "fact"),
    [
        ("recipe", [1], "recipe should be"),
        ("recipe", {"epochs": "3"}, "recipe.*is missing"),
        ("recipe", asdict(QUICK) | {"epochs": "3"}, "recipe.epochs should be an integer"),
        ("recipe", asdict(QUICK) | {"schedule": 1}, "recipe.schedule should be one of cosine, constant"),
        ("epoch", -1, "epoch -1"),
        ("epoch", 10**9, "of its 3 epochs"),
        ("epoch", True, "epoch should be an integer"),
        ("epoch", None, "epoch should be an integer"),
        ("epoch", 2, "3 epochs after epoch 2"),
        ("step", -3, "step -3"),
        ("step", 1, "step 1 after epoch 3"),
        ("starts", None, "starts should be"),
        ("history", [{"a": 1}] * 3, "history.*is missing"),
        ("history", 5, "history should be a list"),
        ("dataset", 5, "dataset should be"),
        ("what", 5, "unknown field 'what'"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(
    finished: Path, tmp_path: Path, part: str, value: Any, fact: str
) -> None:
    tensors, kept = read_tensors(finished)
    content = {name: each for name, each in kept.items() if name != "digest"} | {part: value}
    write_tensors(tmp_path / "last", tensors, content | {"digest": digest(content, tensors)})
    for read in (lambda path: quietly(network(), textures(), QUICK, checkpoint=path), finished_recipe):
        with pytest.raises(ValueError, match=rf"last was .*{fact}.*or remove it to start"):
            read(tmp_path / "last")


def test_infinite_numbers_are_refused(finished: Path, tmp_path: Path) -> None:
    tensors, kept = read_tensors(finished)
    text = json.dumps(kept).replace(f'"epoch": {kept["epoch"]}', '"epoch": 1e999')
    assert "1e999" in text
    (tmp_path / "last").write_bytes(save(tensors, {"rheobase": text}))
    with pytest.raises(ValueError, match=r"last was damaged or changed: .*or remove it"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")


def test_steps_beyond_the_epoch_are_refused(finished: Path, tmp_path: Path) -> None:
    tensors, kept = read_tensors(finished)
    kept |= {"epoch": 2, "step": 10**9, "history": kept["history"][:2]}
    kept.pop("digest")
    write_tensors(tmp_path / "last", tensors, kept)
    with pytest.raises(ValueError, match=r"last was .*step 1000000000 of an epoch of 4 .*or remove it"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")


@pytest.mark.parametrize("signed", [True, False])
def test_changed_and_broken_weights_are_refused(finished: Path, tmp_path: Path, signed: bool) -> None:
    tensors, kept = read_tensors(finished)
    tensors["model.0.weight"][0, 0, 0, 0] = 0.25 if signed else torch.nan
    write_tensors(tmp_path / "last", tensors, kept if signed else kept | {"digest": None})
    with pytest.raises(ValueError, match=r"last was .*(differs|NaN weights in model\.0).*or remove it"):
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")


def test_killed_at_any_moment_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    script = [sys.executable, __file__, str(tmp_path / "last.safetensors")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3, "too few kills to mean anything"
    whole = quietly(network(), textures(), LONG)
    resumed = quietly(network(), textures(), LONG, checkpoint=tmp_path / "last.safetensors")
    assert equal(whole.model, resumed.model)
    assert without_seconds(whole) == without_seconds(resumed)


def kill_until_done(path: Path) -> int:
    """Train in child processes, each killed after a random while, until one gets to the end."""
    quietly(network(), textures(), QUICK)  # so that no child spends its life on first imports
    for kills in range(40):
        child = os.fork()
        if child == 0:
            try:
                quietly(network(), textures(), LONG, checkpoint=path, save_every=3)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        time.sleep(random.uniform(0, 0.03 * 1.5**kills))
        os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == 0:
            return kills
        if status != -signal.SIGKILL:
            raise SystemExit(status)
    raise SystemExit("never done")


def test_thresholds_that_started_elsewhere_are_another_training(tmp_path: Path) -> None:
    quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    other = network()
    clips = [module for module in other.modules() if isinstance(module, Clip)]
    assert clips
    with torch.no_grad():
        clips[0].threshold.fill_(1.5)
    with pytest.raises(ValueError, match=r"start of its thresholds.* 1\.5 here"):
        quietly(other, textures(), QUICK, checkpoint=tmp_path / "last")


def test_starting_again(tmp_path: Path) -> None:
    first = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
    other = quietly(network(1), textures(), QUICK, checkpoint=tmp_path / "last", resume=False)
    assert not equal(first.model, other.model)
    assert equal(other.model, quietly(network(2), textures(), QUICK, checkpoint=tmp_path / "last").model)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(kill_until_done(Path(sys.argv[1])))
