"""The batches of an epoch: shared evenly, reproducible, normalised as the data says."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rheobase.io import Ranks
from rheobase.training import RECIPES, Recipe, Split, loader
from textures import QUICK, textures

CPU = torch.device("cpu")


def rows(recipe: Recipe, count: int, epoch: int, first: int, ranks: Ranks) -> list[list[int]]:
    """Which images each step gets: image number n has label n."""
    data = Split(torch.zeros(count, 1, 1, 1, dtype=torch.uint8), torch.arange(count), (0.5,), (0.5,))
    return [labels.tolist() for _, labels in loader.load_epoch(data, recipe, epoch, first, ranks, CPU)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 30), st.integers(0, 3), st.data())
def test_an_epoch_shares_out_different_images(
    count: int, share: int, extra: int, epoch: int, data: st.DataObject
) -> None:
    recipe = Recipe(epochs=1, batch_size=count * share, learning_rate=1)
    images = count * share + extra
    first = data.draw(st.integers(0, images // recipe.batch_size))
    alone = rows(recipe, images, epoch, 0, Ranks())
    flat = [row for step in alone for row in step]
    assert len(flat) == len(set(flat)) == images - images % recipe.batch_size
    assert rows(recipe, images, epoch, first, Ranks()) == alone[first:]
    shared = [rows(recipe, images, epoch, 0, Ranks(rank, count)) for rank in range(count)]
    assert [[row for part in parts for row in part] for parts in zip(*shared, strict=True)] == alone


def test_epochs_and_blocks_differ_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    data = textures(64)
    data = replace(data, images=data.images[:1].expand_as(data.images))  # so that order plays no part

    def images(epoch: int, first: int = 0) -> list[Tensor]:
        return [x for x, _ in loader.load_epoch(data, QUICK, epoch, first, Ranks(), CPU)]

    monkeypatch.setattr(loader, "_BLOCK_BYTES", 4 * 36 * 16 * 3)  # blocks of three steps, then one
    assert not torch.equal(images(0)[0], images(1)[0])
    assert not torch.equal(images(0)[0], images(0)[3])
    for first in range(4):
        assert all(torch.equal(a, b) for a, b in zip(images(0)[first:], images(0, first), strict=True))


@pytest.mark.parametrize("augment", [None, *loader.augmentations()])
def test_images_are_normalised_as_the_data_says_whatever_the_augmentation(augment: str | None) -> None:
    grey = torch.full((32, 3, 32, 32), 128, dtype=torch.uint8)  # most of which stays
    data = Split(grey, torch.arange(32), (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    recipe = replace(QUICK, augment=augment, batch_size=32)
    ((images, _),) = loader.load_epoch(data, recipe, 0, 0, Ranks(), CPU)
    found, expected = (x.transpose(0, 1).flatten(1).median(1).values for x in (images, data.normalise(grey)))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.15)


def test_what_is_cut_out_is_of_the_mean_colour_or_black() -> None:
    grey = torch.full((32, 3, 32, 32), 200, dtype=torch.uint8)
    data = Split(grey, torch.arange(32), (0.2,) * 3, (0.5,) * 3)
    recipe = replace(QUICK, augment="cifar100", batch_size=32)
    ((mean, _),) = loader.load_epoch(data, recipe, 0, 0, Ranks(), CPU)
    ((black, _),) = loader.load_epoch(data, replace(recipe, cutout="before"), 0, 0, Ranks(), CPU)
    cut = mean != black  # all else is the same
    assert cut.flatten(1).any(1).all()
    assert cut.flatten(1).sum(1).max() == 3 * 8 * 8
    assert mean[cut].unique().tolist() == [0]
    assert black[cut].unique().tolist() == pytest.approx([-0.2 / 0.5])


def test_processes_must_share_evenly() -> None:
    with pytest.raises(ValueError, match="multiple of 3"):
        loader.count_steps(textures(), QUICK, Ranks(0, 3))


def test_the_augmentation_of_every_recipe_is_known() -> None:
    assert {recipe.augment for recipe in RECIPES.values()} - {None} <= loader.augmentations().keys()


def test_an_unknown_augmentation() -> None:
    with pytest.raises(ValueError, match=r"'flop'.*crop-flip.*None"):
        next(loader.load_epoch(textures(), replace(QUICK, augment="flop"), 0, 0, Ranks(), CPU))
