"""Recipes: the learning rate of each step, refused settings, and the named ones."""

import math
from dataclasses import replace
from typing import Any

import pytest

from rheobase.training.recipe import RECIPES, Recipe, find_recipe
from textures import QUICK


def test_the_rate_warms_up_in_a_line_and_falls_along_a_cosine() -> None:
    recipe = Recipe(epochs=6, batch_size=1, learning_rate=0.8, warmup_epochs=2)
    rates = [recipe.rate(step, 10) for step in range(60)]
    assert rates[:20] == pytest.approx([0.8 * (step + 1) / 20 for step in range(20)])
    assert rates[20] == 0.8
    assert rates[40] == pytest.approx(0.4)
    assert rates[20:] == pytest.approx([0.4 * (1 + math.cos(math.pi * k / 40)) for k in range(40)])
    assert 0 < rates[-1] < 0.002


def test_the_rate_can_stay() -> None:
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
        {"decayed": "biases"},
        {"cutout": "never"},
        {"seed": -1},
    ],
)
def test_a_wrong_setting_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(QUICK, **wrong)


def test_the_papers_recipes() -> None:
    papers = {name: recipe for name, recipe in RECIPES.items() if recipe.optimiser == "sgd"}
    assert {name for name in papers if "cifar" in name} == {
        f"{net}-{data}{method}"
        for net in ("vgg16", "resnet20", "resnet18")
        for data in ("cifar10", "cifar100")
        for method in ("", "-qcfs")
    }
    for name, recipe in papers.items():
        if "cifar" in name:
            ten = "cifar100" not in name
            assert (recipe.epochs, recipe.batch_size, recipe.momentum) == (300, 128, 0.9)
            assert recipe.learning_rate == (0.1 if ten else 0.05 if "qcfs" in name else 0.02)
            assert recipe.weight_decay == 5e-4
            assert recipe.clip_decay == (1e-3 if name == "vgg16-cifar10" else 5e-4)
            assert recipe.augment == ("cifar10" if ten else "cifar100")
    imagenet = RECIPES["vgg16-imagenet"]
    assert (imagenet.epochs, imagenet.learning_rate, imagenet.label_smoothing) == (120, 0.1, 0.1)
    assert imagenet.weight_decay == imagenet.clip_decay == 1e-4


def test_an_unknown_name_suggests_the_nearest() -> None:
    assert find_recipe("digits") is RECIPES["digits"]
    with pytest.raises(ValueError, match=r"vgg-cifar10.*'vgg16-cifar10'"):
        find_recipe("vgg-cifar10")
