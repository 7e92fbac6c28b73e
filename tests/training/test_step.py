"""One step: the textbook's update, which parameters decay how, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from rheobase.analysis import accuracy
from rheobase.io import Ranks
from rheobase.network import Clip
from rheobase.training import Recipe, cores, models
from rheobase.training import step as step_module
from rheobase.training.state import Epoch
from rheobase.training.step import Learner
from textures import QUICK, equal, network, quietly, textures


def test_one_batch_per_epoch_is_the_textbook_descent() -> None:
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


@pytest.mark.parametrize(
    ("decayed", "kept"),
    [
        ("all", set()),
        ("layers", {"1.weight", "1.bias"}),
        ("kernels", {"0.bias", "1.weight", "1.bias", "5.bias"}),
    ],
)
def test_what_decays(decayed: Literal["all", "layers", "kernels"], kept: set[str]) -> None:
    learner = Learner(network(), replace(QUICK, decayed=decayed), Ranks())
    rates = {
        id(p): group["weight_decay"] for group in learner.optimiser.param_groups for p in group["params"]
    }
    found = {name: rates[id(p)] for name, p in learner.parameters.items()}
    assert {name for name, rate in found.items() if rate == 0} == kept
    assert found.pop("2.threshold") == QUICK.clip_decay
    assert {rate for name, rate in found.items() if name not in kept} == {QUICK.weight_decay}


def test_a_deterministic_step_refuses_what_may_differ_and_leaves_no_trace() -> None:
    seen = []

    class Watch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((self.training, torch.are_deterministic_algorithms_enabled()))
            return x

    model = nn.Sequential(Watch(), network())
    for deterministic in (False, True):
        seen.clear()
        quietly(model, textures(), replace(QUICK, deterministic=deterministic))
        assert {ordered for training, ordered in seen if training} == {deterministic}
        assert not torch.are_deterministic_algorithms_enabled()


def test_adamw_is_torchs_with_decay_on_matrices_only() -> None:
    data = textures(30)
    recipe = Recipe(
        epochs=4, batch_size=30, learning_rate=0.01, weight_decay=0.1, clip_decay=0.3, optimiser="adamw"
    )
    model = network()
    model[4].p = 0
    trained = quietly(model, data, recipe)
    images, matrices = data.normalise(data.images), [model[0].weight, model[5].weight]
    clips = [model[2].threshold]
    others = [p for p in model.parameters() if all(p is not q for q in (*matrices, *clips))]
    groups = [(matrices, 0.1), (others, 0.0), (clips, 0.3)]
    optimiser = torch.optim.AdamW([{"params": p, "weight_decay": decay} for p, decay in groups])
    for step in range(4):
        for group in optimiser.param_groups:
            group["lr"] = recipe.rate(step, 1)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), data.labels).backward()
        optimiser.step()
    for name, tensor in trained.model.named_parameters():
        if name == "0.bias":  # batch norm removes it: its gradient is rounding, which AdamW makes large
            continue
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=1e-4, atol=1e-5)


def test_tables_of_positions_do_not_decay() -> None:
    model = models.build("vit", 3, channels=1, size=8, width=16, depth=1, heads=2)
    learner = Learner(model, replace(QUICK, optimiser="adamw"), Ranks())
    decaying, kept = ({id(p) for p in group["params"]} for group in learner.optimiser.param_groups)
    names = {name: id(p) for name, p in learner.parameters.items()}
    assert names["positions"] in kept
    assert names["norm.weight"] in kept
    assert names["blocks.0.attention.qkv.weight"] in decaying
    assert names["stem.0.weight"] in decaying
    assert len(decaying | kept) == len(names)


def test_a_training_with_adamw_resumes_exactly(tmp_path: Path) -> None:
    recipe = replace(QUICK, optimiser="adamw", learning_rate=0.01)
    whole = quietly(network(), textures(), recipe)

    def stop(epoch: Epoch, _: nn.Module) -> None:
        if epoch.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quietly(network(), textures(), recipe, checkpoint=tmp_path / "state", save_every=4, on_epoch=stop)
    resumed = quietly(network(), textures(), recipe, checkpoint=tmp_path / "state")
    assert "resumed" in resumed.notes[0]
    assert equal(whole.model, resumed.model)


@pytest.mark.filterwarnings("ignore:TF32")
def test_half_precision_learns_too() -> None:
    data = textures()
    # oneDNN cannot multiply bfloat16 matrices in some virtual machines whose processors say it can.
    with torch.backends.mkldnn.flags(enabled=False):
        trained = quietly(network(), data, replace(QUICK, epochs=20, precision="bfloat16"))
    assert accuracy(trained.model, data) > 95
    assert all(parameter.dtype == torch.float32 for parameter in trained.model.parameters())


def test_without_a_capture_steps_are_eager_and_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = quietly(network(), textures(), QUICK)
    monkeypatch.setattr(step_module, "_can_capture", lambda *_: True)
    trained = quietly(network(), textures(), QUICK)
    assert trained.notes[0].startswith("eager steps: no CUDA graph could be captured (")
    assert equal(usual.model, trained.model)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_large_networks_compute_with_the_channels_last(
    optimiser: Literal["sgd", "adamw"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no difference but for rounding, and the caller gets weights as PyTorch makes them."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 2, 6), nn.Flatten(), nn.Linear(2, 3))
    recipe = replace(QUICK, optimiser=optimiser)
    trained = []
    for few, strides in ((2**28, (144, 36, 6, 1)), (0, (144, 1, 24, 4))):
        seen = []
        monkeypatch.setattr(cores, "_FEW", few)
        result = quietly(
            model, textures(), recipe, on_epoch=lambda _, m, s=seen: s.append(m[1].weight.stride())
        )
        assert set(seen) == {strides}
        trained.append(result.model[1].weight)
    assert trained[0].stride() == trained[1].stride()
    assert not torch.equal(trained[0], model[1].weight)
    torch.testing.assert_close(trained[0], trained[1])


def test_weights_in_another_precision() -> None:
    with pytest.raises(ValueError, match=r"0\.weight is torch\.float64.*pass model\.float\(\)"):
        quietly(network().double(), textures(), QUICK)


def test_nothing_to_train() -> None:
    with pytest.raises(ValueError, match="no parameters to train"):
        quietly(network().requires_grad_(False), textures(), QUICK)


def test_clips_are_modules_and_not_names() -> None:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.threshold = nn.Parameter(torch.tensor(0.5))

    model = nn.Sequential(Gate(), nn.Sequential(Clip(3.0)), Clip(2.0).requires_grad_(False))
    learner = Learner(model, QUICK, Ranks())
    assert learner.read_clips() == {"1.0": 3.0}
    gate, clip = learner.optimiser.param_groups
    assert (gate["weight_decay"], clip["weight_decay"]) == (QUICK.weight_decay, QUICK.clip_decay)
    assert gate["params"] == [learner.model[0].threshold]  # type: ignore[index]
