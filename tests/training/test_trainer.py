"""Training: it learns, resumes to the bit, notices collapse, and touches nothing of the caller's."""

import copy
import errno
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rheobase.analysis import accuracy
from rheobase.network import Clip
from rheobase.training import CollapseError, Dataset, Folder, step
from textures import QUICK, Alarm, equal, network, quietly, textures


class Dice(nn.Module):
    """Passes its input on, and remembers what it draws in training."""

    def __init__(self) -> None:
        super().__init__()
        self.throws: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.throws.append(torch.rand(()).item())
        return x


class TestLearning:
    def test_it_learns_and_leaves_the_callers_model_alone(self) -> None:
        model, data = network(), textures()
        model[1].eval()
        model[5].weight.grad = torch.ones_like(model[5].weight)
        before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
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

    def test_two_trainings_of_one_seed_give_the_same_bits_and_another_seed_others(self) -> None:
        data = textures()
        one, again = (quietly(network(), data, QUICK) for _ in range(2))
        assert equal(one.model, again.model)
        assert not equal(one.model, quietly(network(), data, replace(QUICK, seed=1)).model)

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

    def test_the_network_draws_again_in_every_step_and_the_same_in_every_run(self) -> None:
        runs = []
        for _ in range(2):
            trained = quietly(nn.Sequential(Dice(), *network()), textures(), QUICK)
            runs.append(trained.model[0].throws)
        assert runs[0] == runs[1]
        assert len(set(runs[0])) == len(runs[0]) == 12

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
            with pytest.raises(TypeError, match=r"Split or a Folder, got a \w+"):
                quietly(network(), form, QUICK)  # type: ignore[arg-type]

    def test_labels_without_an_output(self) -> None:
        with pytest.raises(ValueError, match=r"0 to 2.* 2 outputs.*classes=3"):
            quietly(network(classes=2), textures(), QUICK)

    def test_outputs_that_are_not_classes(self) -> None:
        with pytest.raises(ValueError, match=r"\(1, 4, 6, 6\)"):
            quietly(network()[:3], textures(), QUICK)

    def test_a_batch_larger_than_the_data(self) -> None:
        with pytest.raises(ValueError, match=r"16.*10"):
            quietly(network(), textures(10), QUICK)

    def test_checkpoints_that_are_never_due(self) -> None:
        with pytest.raises(ValueError, match=r"save_every.*0"):
            quietly(network(), textures(), QUICK, save_every=0)

    def test_no_room_is_found_out_before_training(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
        monkeypatch.setattr(step.Learner, "step", lambda *_: pytest.fail("a step was taken"))
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


class TestCollapse:
    def test_a_fallen_clip_is_named(self, tmp_path: Path) -> None:
        recipe = replace(QUICK, clip_decay=9.0, learning_rate=0.02)
        with pytest.raises(CollapseError, match=r"clip 2 .* from 2.*clip_decay"):
            quietly(network(), textures(), recipe, checkpoint=tmp_path / "last")
        # What stays on disk is from before the fall, and training on leads to the same end.
        with pytest.raises(CollapseError, match="clip 2 "):
            quietly(network(), textures(), recipe, checkpoint=tmp_path / "last")

    def test_a_clip_may_end_far_below_its_start(self) -> None:
        model = network()
        model[2].threshold.data.fill_(1000.0)
        last = quietly(model, textures(), replace(QUICK, epochs=80, clip_decay=0.05)).history[-1]
        assert last.clips["2"] < 0.01 * 1000
        assert last.accuracy > 90

    def test_a_loss_that_is_not_finite(self, tmp_path: Path) -> None:
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
        with pytest.raises(CollapseError, match=r"loss .*not finite.*learning_rate"):
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

    def test_a_mask_of_infinite_logits_is_no_collapse(self, tmp_path: Path) -> None:
        class Masked(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

            def forward(self, x: Tensor) -> Tensor:
                return x

        model = nn.Sequential(Masked(), *network())
        trained = quietly(model, textures(), QUICK, checkpoint=tmp_path / "last")
        assert len(trained.history) == QUICK.epochs
        again = quietly(model, textures(), QUICK, checkpoint=tmp_path / "last")
        assert again.notes == ("finished before: no step was taken",)

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
