"""The batches of an epoch; every random draw is a function of the seed and the position in the training.

Nothing depends on earlier draws, so training can be resumed anywhere, and processes that train together draw
the same order and, of a `Split`, the same augmentation without communication. The images of a `Folder` are
augmented by the process that reads them.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rheobase.io import Ranks, find_name
from rheobase.training import datasets
from rheobase.training.augmentation import Augmentation, ColourJitter, Flip, Normalise, RandomCrop
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Split
from rheobase.training.recipe import Recipe

# A Split is augmented many batches at a time: this many bytes of images, as float32.
_BLOCK_BYTES = 2**28


class Draw(IntEnum):
    """What a random draw is for; draws for different purposes never share a stream."""

    ORDER = 0
    AUGMENTATION = 1
    NETWORK = 2


@cache
def augmentations() -> dict[str, Callable[[Normalise], Augmentation]]:
    """The augmentations that a recipe can name: general ones, and each dataset's own by its name."""
    return {
        "crop-flip": lambda normalise: Augmentation((RandomCrop(), Flip(), normalise)),
        "imagenet": lambda normalise: Augmentation((ColourJitter(), normalise)),  # `Folder` crops and flips
        **{name: datasets.find(name).augment for name in datasets.names()},
    }


def seed_of(recipe: Recipe, purpose: Draw, *position: int) -> int:
    """Combine the recipe's seed with a position in the training into the seed of one draw."""
    return int(np.random.SeedSequence((recipe.seed, purpose, *position)).generate_state(1, np.uint64)[0])


def count_steps(data: Split | Folder, recipe: Recipe, ranks: Ranks) -> int:
    """The number of steps per epoch: complete batches only, and each epoch leaves out other images.

    Raises:
        TypeError: The data is neither a `Split` nor a `Folder`.
        ValueError: There is no complete batch, or the processes cannot share one evenly.
    """
    if not isinstance(data, Split | Folder):
        raise TypeError(
            f"expected a Split or a Folder, got a {type(data).__name__}; pass the .train of a Dataset, or "
            "rheobase.training.Split(pixels, labels, mean, std) for your own images"
        )
    if recipe.batch_size > len(data):
        raise ValueError(
            f"batch_size is {recipe.batch_size}, but there are {len(data)} images; lower it to {len(data)}"
        )
    if recipe.batch_size % ranks.count:
        raise ValueError(
            f"{ranks.count} processes cannot share a batch of {recipe.batch_size} evenly; "
            f"choose a batch_size that is a multiple of {ranks.count}"
        )
    return len(data) // recipe.batch_size


def load_epoch(
    data: Split | Folder, recipe: Recipe, epoch: int, first: int, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this process's share of each batch of an epoch, augmented, as (images, labels) on the device.

    Args:
        data: The training images.
        recipe: Gives batch size, augmentation and seed.
        epoch: Counted from zero.
        first: The step to begin with.
        ranks: Each process gets an equal part of every batch.
        device: The device of the network.
    """
    if isinstance(data, Folder):
        return _load_from_disk(data, recipe, epoch, first, ranks, device)
    return _load_from_memory(data, recipe, epoch, first, ranks, device)


def _load_from_memory(
    data: Split, recipe: Recipe, epoch: int, first: int, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    augment = _find_augmentation(data, recipe)
    size, share = recipe.batch_size, recipe.batch_size // ranks.count
    steps = count_steps(data, recipe, ranks)
    block = max(1, _BLOCK_BYTES // (4 * data.images[0].numel() * size))
    order = torch.randperm(len(data), device=device, generator=_generator(device, recipe, Draw.ORDER, epoch))
    for start in range(first - first % block, steps, block):
        stop = min(start + block, steps)
        rows = order[start * size : stop * size]
        draws = _generator(device, recipe, Draw.AUGMENTATION, epoch, start)
        images, labels = _convert(augment(data.images[rows], draws), recipe), data.labels[rows]
        for step in range(max(start, first), stop):
            mine = (step - start) * size + ranks.rank * share
            yield images[mine : mine + share], labels[mine : mine + share]


def _load_from_disk(
    data: Folder, recipe: Recipe, epoch: int, first: int, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    augment = _find_augmentation(data, recipe)
    size, share = recipe.batch_size, recipe.batch_size // ranks.count
    order = data.shuffle(_generator(torch.device("cpu"), recipe, Draw.ORDER, epoch))
    starts = [step * size + ranks.rank * share for step in range(first, count_steps(data, recipe, ranks))]
    data.set_epoch(epoch)
    loader = DataLoader(
        data,
        batch_sampler=[order[start : start + share] for start in starts],
        num_workers=data.workers,
        pin_memory=device.type == "cuda",
    )
    for step, (pixels, labels) in enumerate(loader, first):
        draws = _generator(device, recipe, Draw.AUGMENTATION, epoch, step, ranks.rank)
        images = augment(pixels.to(device, non_blocking=True), draws)
        yield _convert(images, recipe), labels.to(device, non_blocking=True)


def _find_augmentation(data: Split | Folder, recipe: Recipe) -> Callable[[Tensor, torch.Generator], Tensor]:
    if recipe.augment is None:
        return lambda images, _: data.normalise(images)
    build = find_name("augmentation", recipe.augment, augmentations(), hint="or None")
    found = build(Normalise(data.mean, data.std))
    if recipe.cutout == "after":
        return found
    return Augmentation(tuple(sorted(found.transforms, key=lambda step: isinstance(step, Normalise))))


def _generator(device: torch.device, recipe: Recipe, purpose: Draw, *position: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_of(recipe, purpose, *position))


def _convert(images: Tensor, recipe: Recipe) -> Tensor:
    # Done once for a block instead of by autocast for every batch.
    precision = torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    layout = torch.channels_last if images.is_cuda else torch.contiguous_format
    return images.to(precision, memory_format=layout)
