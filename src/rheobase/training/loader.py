"""The batches of an epoch, every random draw of them a function of the seed and the place in the training.

Since nothing depends on what was drawn before, a training can stop and go on anywhere, and processes that
work together draw the same order and the same augmentation without speaking to each other.
"""

from collections.abc import Callable, Iterator
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rheobase.io import Ranks
from rheobase.training.augmentation import Augmentation
from rheobase.training.augmentation.jitter import ColourJitter
from rheobase.training.augmentation.transforms import Flip, Normalise, RandomCrop
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Split
from rheobase.training.recipe import Recipe

Augment = Callable[[Tensor, torch.Generator], Tensor]

# Images are augmented many batches at a time: this much of them, as float32.
_BLOCK_BYTES = 2**28


# What a recipe may name, given how its data is normalised, so that a network is tested as it was trained.
AUGMENTATIONS: dict[str, Callable[[Normalise], Augment]] = {
    "cifar10": Augmentation.cifar10,
    "cifar100": Augmentation.cifar100,
    "crop-flip": lambda normalise: Augmentation((RandomCrop(), Flip(), normalise)),
    "imagenet": lambda normalise: Augmentation((ColourJitter(), normalise)),  # `Folder` crops
}


class Draw(IntEnum):
    """What a random draw is for; draws for different purposes never share a stream."""

    ORDER = 0
    AUGMENTATION = 1
    NETWORK = 2


def seed_of(recipe: Recipe, purpose: Draw, *place: int) -> int:
    """Mix the recipe's seed with a place in the training into the seed of one draw."""
    return int(np.random.SeedSequence((recipe.seed, purpose, *place)).generate_state(1, np.uint64)[0])


def count_steps(data: Split | Folder, recipe: Recipe, ranks: Ranks) -> int:
    """Count the steps of an epoch: whole batches only, as each epoch leaves out other images.

    Raises:
        ValueError: There is no whole batch, or the processes cannot share one evenly.
    """
    if recipe.batch_size > len(data):
        raise ValueError(
            f"a batch of {recipe.batch_size} needs as many images, and there are {len(data)}; "
            f"lower batch_size to {len(data)} or less"
        )
    if recipe.batch_size % ranks.count:
        raise ValueError(
            f"{ranks.count} processes cannot share a batch of {recipe.batch_size} evenly; "
            f"choose a batch_size that is a multiple of {ranks.count}"
        )
    return len(data) // recipe.batch_size


def feed(
    data: Split | Folder, recipe: Recipe, epoch: int, first: int, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Give this process's share of each batch of an epoch, augmented, as (images, labels) on the device.

    Args:
        data: The training images.
        recipe: Which says how large a batch is, how it is augmented, and the seed.
        epoch: Counted from zero.
        first: The step to begin with, when those before it were learnt already.
        ranks: Each process takes an equal part of every batch.
        device: Where the network is.
    """
    if isinstance(data, Folder):
        return _feed_from_disk(data, recipe, epoch, first, ranks, device)
    return _feed_from_memory(data, recipe, epoch, first, ranks, device)


def _feed_from_memory(
    data: Split, recipe: Recipe, epoch: int, first: int, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    augment = _find_augment(data, recipe)
    size, share = recipe.batch_size, recipe.batch_size // ranks.count
    steps = count_steps(data, recipe, ranks)
    block = max(1, _BLOCK_BYTES // (4 * data.images[0].numel() * size))
    order = torch.randperm(len(data), device=device, generator=_generator(device, recipe, Draw.ORDER, epoch))
    for start in range(first - first % block, steps, block):
        stop = min(start + block, steps)
        rows = order[start * size : stop * size]
        draws = _generator(device, recipe, Draw.AUGMENTATION, epoch, start)
        images, labels = _lay_out(augment(data.images[rows], draws), recipe), data.labels[rows]
        for step in range(max(start, first), stop):
            mine = (step - start) * size + ranks.rank * share
            yield images[mine : mine + share], labels[mine : mine + share]


def _feed_from_disk(
    data: Folder, recipe: Recipe, epoch: int, first: int, ranks: Ranks, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    augment = _find_augment(data, recipe)
    size, share = recipe.batch_size, recipe.batch_size // ranks.count
    cpu = torch.device("cpu")
    order = data.shuffle(_generator(cpu, recipe, Draw.ORDER, epoch))
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
        yield _lay_out(images, recipe), labels.to(device, non_blocking=True)


def _find_augment(data: Split | Folder, recipe: Recipe) -> Augment:
    if recipe.augment is None:
        return lambda images, _: data.normalise(images)
    if recipe.augment not in AUGMENTATIONS:
        raise ValueError(
            f"unknown augmentation {recipe.augment!r}; choose of {', '.join(AUGMENTATIONS)}, or None"
        )
    return AUGMENTATIONS[recipe.augment](Normalise(data.mean, data.std))


def _generator(device: torch.device, recipe: Recipe, purpose: Draw, *place: int) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed_of(recipe, purpose, *place))


def _lay_out(images: Tensor, recipe: Recipe) -> Tensor:
    # What autocast would do to every batch in its turn, done once for the block.
    precision = torch.bfloat16 if recipe.precision == "bfloat16" else torch.float32
    layout = torch.channels_last if images.is_cuda else torch.contiguous_format
    return images.to(precision, memory_format=layout)
