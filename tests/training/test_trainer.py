"""Training: it learns, resumes to the bit, notices collapse, and touches nothing of the caller's."""

import copy
import errno
import io
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rheobase.analysis.evaluation import accuracy
from rheobase.io.processes import Ranks
from rheobase.io.progress import display
from rheobase.io.tensors import read_tensors, save_weights, write_tensors
from rheobase.network.activations import Clip
from rheobase.training import loader, state
from rheobase.training import step as steps
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Dataset, Split
from rheobase.training.recipe import RECIPES, Recipe, find_recipe
from rheobase.training.trainer import CollapseError, Trained, train

CPU = torch.device("cpu")
QUICK = Recipe(epochs=3, batch_size=16, learning_rate=0.05, augment="crop-flip", seed=5)


def textures(count: int = 70, seed: int = 0) -> Split:
    """Noisy images of three classes that cropping leaves apart: rows, columns and a checkerboard."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 100, (count, 1, 6, 6), generator=draws)
    row, column = torch.arange(6)[:, None], torch.arange(6)
    for label, bright in enumerate((row + 0 * column, column + 0 * row, row + column)):
        images[labels == label] += 120 * (bright % 2)
    return Split(images.to(torch.uint8), labels, (0.4,), (0.25,))


def network(seed: int = 0, classes: int = 3) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            Clip(2.0),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(144, classes),
        )


def quietly(model: nn.Module, data: Split | Folder, recipe: Recipe, **options: Any) -> Trained:
    return train(model, data, recipe, progress=False, **options)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(left: nn.Module, right: nn.Module) -> bool:
    one, other = left.state_dict(), right.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_seconds(trained: Trained) -> list[object]:
    return [replace(epoch, seconds=0) for epoch in trained.history]


class TestRecipe:
    def test_the_rate_warms_up_in_a_line_and_falls_along_a_cosine(self) -> None:
        recipe = Recipe(epochs=6, batch_size=1, learning_rate=0.8, warmup_epochs=2)
        rates = [recipe.rate(step, 10) for step in range(60)]
        assert rates[:20] == pytest.approx([0.8 * (step + 1) / 20 for step in range(20)])
        assert rates[20] == 0.8
        assert rates[40] == pytest.approx(0.4)
        assert rates[20:] == pytest.approx([0.4 * (1 + math.cos(math.pi * k / 40)) for k in range(40)])
        assert 0 < rates[-1] < 0.002

    def test_the_rate_can_stay(self) -> None:
        recipe = Recipe(epochs=2, batch_size=1, learning_rate=0.3, schedule="constant")
        assert {recipe.rate(step, 5) for step in range(10)} == {0.3}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"epochs": 0},
            {"epochs": 2.0},
            {"batch_size": 0},
            {"learning_rate": 0},
            {"learning_rate": math.inf},
            {"momentum": 1},
            {"weight_decay": -1},
            {"clip_decay": math.nan},
            {"label_smoothing": -0.1},
            {"schedule": "linear"},
            {"precision": "float16"},
            {"warmup_epochs": 3},
            {"seed": -1},
        ],
    )
    def test_a_wrong_setting_is_named(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            replace(QUICK, **wrong)

    def test_the_papers_recipes(self) -> None:
        assert {name for name in RECIPES if "cifar" in name} == {
            f"{net}-{data}" for net in ("vgg16", "resnet20", "resnet18") for data in ("cifar10", "cifar100")
        }
        for name, recipe in RECIPES.items():
            if "cifar" in name:
                ten = name.endswith("cifar10")
                assert (recipe.epochs, recipe.batch_size, recipe.momentum) == (300, 128, 0.9)
                assert recipe.learning_rate == (0.1 if ten else 0.02)
                assert recipe.weight_decay == 5e-4
                assert recipe.clip_decay == (1e-3 if name == "vgg16-cifar10" else 5e-4)
                assert recipe.augment == ("cifar10" if ten else "cifar100")
        imagenet = RECIPES["vgg16-imagenet"]
        assert (imagenet.epochs, imagenet.learning_rate, imagenet.label_smoothing) == (120, 0.1, 0.1)
        assert imagenet.weight_decay == imagenet.clip_decay == 1e-4

    def test_every_recipe_can_be_fed(self) -> None:
        assert {recipe.augment for recipe in RECIPES.values()} - {None} <= loader.AUGMENTATIONS.keys()

    def test_an_unknown_name_suggests_the_nearest(self) -> None:
        assert find_recipe("digits") is RECIPES["digits"]
        with pytest.raises(ValueError, match="did you mean 'vgg16-cifar10'"):
            find_recipe("vgg-cifar10")


class TestLearning:
    def test_it_learns_and_leaves_the_callers_model_alone(self) -> None:
        model, data = network(), textures()
        model[1].eval()
        model[5].weight.grad = torch.ones_like(model[5].weight)
        before, modes = weights(model), [module.training for module in model.modules()]
        random_state = torch.get_rng_state()
        handler = signal.getsignal(signal.SIGINT)

        trained = quietly(model, data, replace(QUICK, epochs=20))

        assert accuracy(trained.model, data) > 95 > accuracy(model, data)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert [module.training for module in model.modules()] == modes
        assert torch.equal(model[5].weight.grad, torch.ones_like(model[5].weight))
        assert torch.equal(torch.get_rng_state(), random_state)
        assert signal.getsignal(signal.SIGINT) is handler
        assert not trained.model.training
        assert all(parameter.grad is None for parameter in trained.model.parameters())

    def test_the_history_says_what_happened(self) -> None:
        seen = []
        trained = quietly(network(), textures(), QUICK, on_epoch=lambda epoch, model: seen.append(epoch))
        assert list(trained.history) == seen
        assert [epoch.number for epoch in seen] == [1, 2, 3]
        assert [epoch.learning_rate for epoch in seen] == [QUICK.rate(4 * n + 3, 4) for n in range(3)]
        assert seen[0].loss > seen[-1].loss
        assert all(1 < epoch.accuracy <= 100 and epoch.seconds > 0 for epoch in seen)
        assert seen[-1].clips == {"2": trained.model[2].threshold.item()}
        assert trained.notes == ("eager steps",)

    def test_one_batch_per_epoch_is_the_textbook_descent(self) -> None:
        data = textures(30)
        recipe = Recipe(
            epochs=5, batch_size=30, learning_rate=0.2, weight_decay=0.01, clip_decay=0.3, label_smoothing=0.1
        )
        model = network()
        model[4].p = 0
        trained = quietly(model, data, recipe)

        images, velocity = data.normalise(data.images), {}
        for step in range(5):
            loss = nn.functional.cross_entropy(model(images), data.labels, label_smoothing=0.1)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
                    decay = 0.3 if name == "2.threshold" else 0.01
                    velocity[name] = 0.9 * velocity.get(name, 0) + gradient + decay * parameter
                    parameter -= 0.1 * (1 + math.cos(math.pi * step / 5)) * velocity[name]
        for name, tensor in trained.model.state_dict().items():
            torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)

    def test_the_seed_decides(self) -> None:
        one, same, other = (quietly(network(), textures(), replace(QUICK, seed=seed)) for seed in (1, 1, 2))
        assert equal(one.model, same.model)
        assert not equal(one.model, other.model)

    @pytest.mark.filterwarnings("ignore:TF32")
    def test_half_precision_learns_too(self) -> None:
        data = textures()
        # oneDNN cannot multiply bfloat16 matrices in some virtual machines whose processors say it can.
        with torch.backends.mkldnn.flags(enabled=False):
            trained = quietly(network(), data, replace(QUICK, epochs=20, precision="bfloat16"))
        assert accuracy(trained.model, data) > 95
        assert all(parameter.dtype == torch.float32 for parameter in trained.model.parameters())

    def test_the_network_draws_anew_in_every_step_and_the_same_in_every_run(self) -> None:
        runs = []
        for _ in range(2):
            trained = quietly(nn.Sequential(Dice(), *network()), textures(), QUICK)
            runs.append(trained.model[0].throws)
        assert runs[0] == runs[1]
        assert len(set(runs[0])) == len(runs[0]) == 12

    def test_what_is_frozen_stays(self) -> None:
        model = network()
        model[0].requires_grad_(False)
        trained = quietly(model, textures(), QUICK)
        assert torch.equal(trained.model[0].weight, model[0].weight)
        assert not torch.equal(trained.model[5].weight, model[5].weight)

    def test_without_a_capture_steps_are_eager_and_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        usual = quietly(network(), textures(), QUICK)
        monkeypatch.setattr(steps, "_can_capture", lambda *_: True)
        trained = quietly(network(), textures(), QUICK)
        assert trained.notes[0].startswith("eager steps: no CUDA graph could be captured (")
        assert equal(usual.model, trained.model)

    def test_from_a_folder(self, tmp_path: Path) -> None:
        from PIL import Image

        data = textures(24)
        for index, (pixels, label) in enumerate(zip(data.images, data.labels, strict=True)):
            folder = tmp_path / "train" / str(label.item())
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[0].numpy()).convert("RGB").save(folder / f"{index}.png")
        model = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), Clip(), nn.Linear(8, 3))
        folder = Folder(tmp_path, size=6, augment=False)
        recipe = replace(QUICK, batch_size=8, augment=None)
        whole = quietly(model, folder, recipe)
        with pytest.raises(KeyboardInterrupt):
            quietly(nn.Sequential(Alarm(5), *model), folder, recipe, checkpoint=tmp_path / "last")
        resumed = quietly(nn.Sequential(Alarm(0), *model), folder, recipe, checkpoint=tmp_path / "last")
        assert [epoch.loss for epoch in whole.history] == [epoch.loss for epoch in resumed.history]
        assert accuracy(whole.model, folder, batch_size=7) > 50


class TestSurroundings:
    """What the caller has set around the call changes nothing."""

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_gradients_flow_where_the_caller_has_turned_them_off(self, mode: Any) -> None:
        with mode():
            model = network()
            trained = quietly(model, textures(), QUICK)
        assert equal(trained.model, quietly(network(), textures(), QUICK).model)
        assert not any(tensor.is_inference() for tensor in trained.model.state_dict().values())

    def test_a_default_type_of_numbers(self) -> None:
        model, data = network(), textures()
        whole = quietly(model, data, QUICK)
        torch.set_default_dtype(torch.float64)
        try:
            assert equal(whole.model, quietly(model, data, QUICK).model)
        finally:
            torch.set_default_dtype(torch.float32)

    def test_a_default_device(self) -> None:
        model, data = network(), textures()
        whole = quietly(model, data.take(40), QUICK)
        with torch.device("meta"):
            assert equal(whole.model, quietly(model, data.take(40), QUICK).model)

    def test_parts_that_were_frozen_stay_so_and_an_evaluated_network_learns_as_a_whole(self) -> None:
        frozen = network().train()
        frozen[1].eval().requires_grad_(False)
        before = copy.deepcopy(frozen[1].state_dict())
        trained = quietly(frozen, textures(), QUICK)
        after = trained.model[1].state_dict()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
        assert not torch.equal(trained.model[0].weight, frozen[0].weight)
        assert equal(
            quietly(network().eval(), textures(), QUICK).model, quietly(network(), textures(), QUICK).model
        )


class TestRefusals:
    def test_data_in_another_form(self) -> None:
        data = textures()
        pair = (data.normalise(data.images), data.labels)
        for form in (pair, [pair], Dataset("textures", ("a", "b", "c"), data, data)):
            with pytest.raises(
                TypeError, match=r"reads a Split or a Folder, got a \w+; of a Dataset pass its"
            ):
                quietly(network(), form, QUICK)  # type: ignore[arg-type]

    def test_weights_in_another_precision(self) -> None:
        with pytest.raises(ValueError, match=r"0\.weight is torch\.float64.*pass model\.float\(\)"):
            quietly(network().double(), textures(), QUICK)

    def test_labels_without_an_output(self) -> None:
        with pytest.raises(ValueError, match=r"labels run from 0 to 2.* 2 outputs; build it with classes=3"):
            quietly(network(classes=2), textures(), QUICK)

    def test_outputs_that_are_not_classes(self) -> None:
        with pytest.raises(ValueError, match=r"gives \(1, 4, 6, 6\) for one image"):
            quietly(network()[:3], textures(), QUICK)

    def test_a_batch_larger_than_the_data(self) -> None:
        with pytest.raises(ValueError, match=r"batch of 16 .* there are 10"):
            quietly(network(), textures(10), QUICK)

    def test_nothing_to_train(self) -> None:
        with pytest.raises(ValueError, match="no parameters to train"):
            quietly(network().requires_grad_(False), textures(), QUICK)

    def test_an_unknown_augmentation(self) -> None:
        with pytest.raises(ValueError, match=r"unknown augmentation 'flop'.*crop-flip"):
            quietly(network(), textures(), replace(QUICK, augment="flop"))

    def test_checkpoints_that_are_never_due(self) -> None:
        with pytest.raises(ValueError, match="save_every must be at least one"):
            quietly(network(), textures(), QUICK, save_every=0)

    def test_no_room_is_found_out_before_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
        monkeypatch.setattr(steps.Descent, "step", lambda *_: pytest.fail("a step was taken"))
        with pytest.raises(OSError, match="0 MB free"):
            quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")

    def test_a_disk_that_fills_up_on_the_way_leaves_the_last_whole_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path, synced, sync = tmp_path / "last", [], os.fsync

        def fill_up(descriptor: int) -> None:
            synced.append(descriptor)
            if len(synced) == 3:  # each checkpoint syncs its file and its folder: this is the second file
                raise OSError(errno.ENOSPC, "No space left on device")
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", lambda d: fill_up(d) if len(synced) < 3 else sync(d))
        whole = quietly(network(), textures(), QUICK)
        with pytest.raises(OSError, match="No space left"):
            quietly(network(), textures(), QUICK, checkpoint=path, save_every=3)
        assert list(tmp_path.iterdir()) == [path]
        resumed = quietly(network(), textures(), QUICK, checkpoint=path)
        assert resumed.notes[0].startswith("resumed after epoch ")
        assert equal(whole.model, resumed.model)

    def test_a_process_that_has_not_joined_the_others(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
        for call in (lambda: quietly(network(), textures(), QUICK), lambda: accuracy(network(), textures())):
            with pytest.raises(RuntimeError, match="init_process_group"):
                call()


class Alarm(nn.Module):
    """Passes its input on, and presses Ctrl-C in the given call made in training."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call, self.calls = call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.training and self.calls == self.call:
            signal.raise_signal(signal.SIGINT)
        return x


class Dice(nn.Module):
    """Passes its input on, and remembers what it draws in training."""

    def __init__(self) -> None:
        super().__init__()
        self.throws: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.throws.append(torch.rand(()).item())
        return x


def alarmed(call: int) -> nn.Sequential:
    return nn.Sequential(Alarm(call), *network())


class TestResuming:
    @pytest.mark.parametrize("call", [1, 3, 4, 5, 12])
    def test_ctrl_c_saves_the_step_and_the_rest_gives_the_same_bits(self, tmp_path: Path, call: int) -> None:
        path = tmp_path / "last.safetensors"
        whole = quietly(alarmed(0), textures(), QUICK)
        with pytest.raises(KeyboardInterrupt):
            quietly(alarmed(call), textures(), QUICK, checkpoint=path)
        resumed = quietly(alarmed(0), textures(), QUICK, checkpoint=path)
        assert equal(whole.model, resumed.model)
        assert without_seconds(whole) == without_seconds(resumed)
        assert resumed.notes[0].startswith("resumed after epoch ")

    def test_ctrl_c_without_a_checkpoint(self) -> None:
        handler = signal.getsignal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            quietly(alarmed(2), textures(), QUICK)
        assert signal.getsignal(signal.SIGINT) is handler

    @pytest.mark.parametrize("save_every", [1, 3, 4, 7, 100])
    def test_how_often_it_is_saved_changes_nothing(self, tmp_path: Path, save_every: int) -> None:
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

    def test_a_finished_training_is_read_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last", save_every=100)
        monkeypatch.setattr(steps.Descent, "step", lambda *_: pytest.fail("a step was taken"))
        second = quietly(network(1), textures(), QUICK, checkpoint=tmp_path / "last")
        assert equal(first.model, second.model)
        assert first.history == second.history

    def test_starting_anew(self, tmp_path: Path) -> None:
        first = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        other = quietly(network(1), textures(), QUICK, checkpoint=tmp_path / "last", resume=False)
        assert not equal(first.model, other.model)
        assert equal(other.model, quietly(network(2), textures(), QUICK, checkpoint=tmp_path / "last").model)

    @pytest.mark.parametrize("name", [field.name for field in fields(Recipe)])
    def test_another_recipe_is_refused_by_name(self, tmp_path: Path, name: str) -> None:
        other: dict[str, Any] = {
            "schedule": "constant", "augment": None, "precision": "bfloat16", "compile": True,
            "momentum": 0.8, "label_smoothing": 0.1, "warmup_epochs": 1, "seed": 6,
        }  # fmt: skip
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        value = other[name] if name in other else getattr(QUICK, name) * 2
        with pytest.raises(ValueError, match=rf"another recipe: {name} .* there and {value!r} here"):
            quietly(network(), textures(), replace(QUICK, **{name: value}), checkpoint=tmp_path / "last")

    def test_another_dataset_is_refused_by_name(self, tmp_path: Path) -> None:
        data = textures()
        quietly(network(), data, QUICK, checkpoint=tmp_path / "last")
        with pytest.raises(ValueError, match=r"another dataset: .*size 70 there and 71 here"):
            quietly(network(), textures(71), QUICK, checkpoint=tmp_path / "last")
        swapped = replace(data, images=data.images.flip(0), labels=data.labels.roll(1))
        with pytest.raises(ValueError, match=r"another dataset: .*labels_crc32"):
            quietly(network(), swapped, QUICK, checkpoint=tmp_path / "last")
        with pytest.raises(ValueError, match="another dataset: images_crc32"):
            quietly(network(), replace(data, images=255 - data.images), QUICK, checkpoint=tmp_path / "last")
        with pytest.raises(ValueError, match=r"another dataset: mean .* there and \[0.9\] here"):
            quietly(network(), replace(data, mean=(0.9,)), QUICK, checkpoint=tmp_path / "last")

    def test_a_checkpoint_that_says_less_of_its_data_is_taken(self, tmp_path: Path) -> None:
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        tensors, kept = read_tensors(tmp_path / "last")
        kept["dataset"] = {name: kept["dataset"][name] for name in ("size", "labels_crc32")}
        write_tensors(tmp_path / "last", tensors, kept)
        again = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        assert again.notes == ("finished before",)

    def test_a_finished_one_needs_no_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        monkeypatch.setattr(state, "require_writable", lambda *_: pytest.fail("asked for room"))
        again = quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        assert again.notes == ("finished before",)

    def test_another_architecture_is_refused_by_name(self, tmp_path: Path) -> None:
        quietly(network(), textures(), QUICK, checkpoint=tmp_path / "last")
        other = network()
        other[5] = nn.Linear(144, 4)
        with pytest.raises(ValueError, match=r"another architecture: model\.5\.weight is \(3, 144\)"):
            quietly(other, textures(), QUICK, checkpoint=tmp_path / "last")

    def test_what_is_no_checkpoint_is_refused(self, tmp_path: Path) -> None:
        save_weights(network(), tmp_path / "weights")
        with pytest.raises(ValueError, match="not the checkpoint of a training"):
            quietly(network(), textures(), QUICK, checkpoint=tmp_path / "weights")
        (tmp_path / "torn").write_bytes((tmp_path / "weights").read_bytes()[:-9])
        with pytest.raises(ValueError, match=r"not a whole safetensors file: .* or remove it, and"):
            quietly(network(), textures(), QUICK, checkpoint=tmp_path / "torn")
        with pytest.raises(IsADirectoryError, match="is a folder"):
            quietly(network(), textures(), QUICK, checkpoint=tmp_path)

    def test_killed_at_any_moment_it_ends_with_the_same_bits(self, tmp_path: Path) -> None:
        script = [sys.executable, __file__, str(tmp_path / "last.safetensors")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            script, capture_output=True, text=True, timeout=120, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) >= 3, "too few kills to mean anything"
        whole = quietly(network(), textures(), LONG)
        resumed = quietly(network(), textures(), LONG, checkpoint=tmp_path / "last.safetensors")
        assert equal(whole.model, resumed.model)
        assert without_seconds(whole) == without_seconds(resumed)


LONG = replace(QUICK, epochs=20)


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


class TestCollapse:
    def test_a_fallen_clip_is_named(self, tmp_path: Path) -> None:
        recipe = replace(QUICK, clip_decay=9.0, learning_rate=0.02)
        with pytest.raises(
            CollapseError, match=r"the clip 2 has fallen to .* from its start at 2.*clip_decay"
        ):
            quietly(network(), textures(), recipe, checkpoint=tmp_path / "last")
        # What stays on disk is from before the fall, and training on leads to the same end.
        with pytest.raises(CollapseError, match="the clip 2 has fallen"):
            quietly(network(), textures(), recipe, checkpoint=tmp_path / "last")

    def test_a_loss_that_is_not_finite(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
        with pytest.raises(CollapseError, match=r"the loss is not finite .*lower learning_rate"):
            quietly(model, textures(), replace(QUICK, learning_rate=1e38), checkpoint=tmp_path / "last")
        assert not (tmp_path / "last").exists()

    def test_weights_that_are_not_finite_are_never_saved(self, tmp_path: Path) -> None:
        class Burst(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return gradient * math.inf

        class Last(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return Burst.apply(super().forward(x))  # type: ignore[no-any-return, no-untyped-call]

        model = nn.Sequential(nn.Flatten(), Last(36, 3))
        recipe = replace(QUICK, epochs=1, batch_size=70)
        with pytest.raises(CollapseError, match=r"model\.1\.weight is not finite"):
            quietly(model, textures(), recipe, checkpoint=tmp_path / "last")
        assert not (tmp_path / "last").exists()

    def test_chance_is_noticed_from_the_sixth_epoch_after_the_warm_up(self) -> None:
        model = network()
        nn.init.zeros_(model[5].weight)
        model.requires_grad_(False)
        model[5].bias.requires_grad_(True)  # all it can learn is how common each class is
        seen = []
        with pytest.raises(CollapseError, match=r"epoch 8 .*3\d\.\d\d %"):
            quietly(
                model,
                textures(),
                replace(QUICK, epochs=20, warmup_epochs=2),
                on_epoch=lambda epoch, _: seen.append(epoch.number),
            )
        assert seen == [1, 2, 3, 4, 5, 6, 7]


class TestAccuracy:
    @settings(max_examples=30, deadline=None)
    @given(st.integers(1, 40), st.integers(1, 50))
    def test_every_image_counts_once(self, count: int, batch_size: int) -> None:
        data, model = textures(count), network()
        model.eval()
        with torch.no_grad():
            right = (model(data.normalise(data.images)).argmax(1) == data.labels).sum().item()
        assert accuracy(model, data, batch_size) == 100 * (right / count)

    def test_answers_that_are_not_one_number_per_class_are_refused(self) -> None:
        data = textures(6)
        for model, found in ((network()[:3], r"\(6, 4, 6, 6\)"), (nn.Flatten(0), r"\(216,\)")):
            with pytest.raises(ValueError, match=rf"gives {found} for 6 images; .* \(6, classes\)"):
                accuracy(model, data)

    def test_a_model_that_writes_into_its_input_leaves_the_data_as_it_was(self) -> None:
        model = nn.Sequential(nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(36, 3))
        images = torch.randn(4, 1, 6, 6)
        before = images.clone()
        accuracy(model, (images, torch.zeros(4, dtype=torch.int64)))
        assert torch.equal(images, before)

    def test_modes_are_as_they_were_even_after_an_error(self) -> None:
        model = network().train()
        model[1].eval()
        modes = [module.training for module in model.modules()]
        accuracy(model, textures())
        assert [module.training for module in model.modules()] == modes
        with pytest.raises(ValueError, match="needs labels"):
            accuracy(model, torch.zeros(2, 1, 6, 6))
        assert [module.training for module in model.modules()] == modes


class TestFeeding:
    def rows(self, recipe: Recipe, count: int, epoch: int, first: int, ranks: Ranks) -> list[list[int]]:
        """Which images each step gets: image number n has label n."""
        data = Split(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count), (0.5,), (0.5,))
        return [labels.tolist() for _, labels in loader.feed(data, recipe, epoch, first, ranks, CPU)]

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 30), st.integers(0, 3), st.data())
    def test_an_epoch_shares_out_different_images(
        self, count: int, share: int, extra: int, epoch: int, data: st.DataObject
    ) -> None:
        recipe = Recipe(epochs=1, batch_size=count * share, learning_rate=1)
        images = count * share + extra
        first = data.draw(st.integers(0, images // recipe.batch_size))
        alone = self.rows(recipe, images, epoch, 0, Ranks())
        flat = [row for step in alone for row in step]
        assert len(flat) == len(set(flat)) == images - images % recipe.batch_size
        assert self.rows(recipe, images, epoch, first, Ranks()) == alone[first:]
        shared = [self.rows(recipe, images, epoch, 0, Ranks(rank, count)) for rank in range(count)]
        assert [[row for part in parts for row in part] for parts in zip(*shared, strict=True)] == alone

    def test_epochs_and_blocks_differ_and_repeat(self, monkeypatch: pytest.MonkeyPatch) -> None:
        data = textures(64)
        data = replace(data, images=data.images[:1].expand_as(data.images))  # so that order plays no part

        def images(epoch: int, first: int = 0) -> list[Tensor]:
            return [x for x, _ in loader.feed(data, QUICK, epoch, first, Ranks(), CPU)]

        monkeypatch.setattr(loader, "_BLOCK_BYTES", 4 * 36 * 16 * 3)  # blocks of three steps, then one
        assert not torch.equal(images(0)[0], images(1)[0])
        assert not torch.equal(images(0)[0], images(0)[3])
        for first in range(4):
            assert all(torch.equal(a, b) for a, b in zip(images(0)[first:], images(0, first), strict=True))

    @pytest.mark.parametrize("augment", [None, *loader.AUGMENTATIONS])
    def test_images_are_normalised_as_the_data_says_whatever_the_augmentation(
        self, augment: str | None
    ) -> None:
        grey = torch.full((32, 3, 32, 32), 128, dtype=torch.uint8)  # most of which stays
        data = Split(grey, torch.arange(32), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
        recipe = replace(QUICK, augment=augment, batch_size=32)
        ((images, _),) = loader.feed(data, recipe, 0, 0, Ranks(), CPU)
        found, expected = (
            x.transpose(0, 1).flatten(1).median(1).values for x in (images, data.normalise(grey))
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=0.15)

    def test_processes_must_share_evenly(self) -> None:
        with pytest.raises(ValueError, match="multiple of 3"):
            loader.count_steps(textures(), QUICK, Ranks(0, 3))


class TestProgress:
    def test_plain_lines_where_there_is_no_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        train(network(), textures(), QUICK)
        out, err = capsys.readouterr()
        assert out == ""
        assert [line.split(":")[0] for line in err.splitlines()] == ["epoch 1", "epoch 2", "epoch 3"]

    def test_nothing_unless_wanted(self, capsys: pytest.CaptureFixture[str]) -> None:
        quietly(network(), textures(), QUICK)
        assert capsys.readouterr() == ("", "")

    def test_a_bar_on_a_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr(sys, "stderr", terminal := Terminal())
        monkeypatch.setenv("TERM", "xterm")
        with display("training", 3, 1) as shown:
            shown.advance()
            shown.say("a line [2]")
            shown.advance()
        assert "a line [2]" in terminal.getvalue()
        assert "3/3" in terminal.getvalue()


def test_a_copy_of_a_trained_model_is_a_model() -> None:
    trained = quietly(network(), textures(), replace(QUICK, epochs=1)).model
    assert equal(copy.deepcopy(trained), trained)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(kill_until_done(Path(sys.argv[1])))
