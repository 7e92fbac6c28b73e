"""The images of a cell, on the device, and what was left out of them."""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from rheobase.io import present_ranks
from rheobase.papers.paper import Cell
from rheobase.training import Folder, Split, datasets

_CALIBRATION_IMAGES = 1024
# The numbers of training and test images of datasets in folders, which may be incomplete.
_PUBLISHED = {"imagenet": (1_281_167, 50_000)}


class CellData(NamedTuple):
    """The images of a cell; `cuts` says what was left out, as text."""

    classes: int
    train: Split | Folder
    test: Split | Folder
    calibration: Split
    cuts: tuple[str, ...]


def load_data(
    cell: Cell,
    root: Path | str | None,
    device: torch.device,
    *,
    limit: int | None = None,
    held_out: int = 0,
    seed: int = 0,
) -> CellData:
    """Load the images of a cell.

    Args:
        cell: The cell.
        root: The folder with the datasets.
        device: Where to put them.
        limit: The largest number of training and of test images.
        held_out: The number of training images to hold out and to use in place of the test images.
        seed: Seed of the augmentation, for datasets that are read while training.

    Raises:
        ValueError: A dataset that is read while training can be neither limited nor held out.
    """
    if cell.size is not None:
        if limit is not None or held_out:
            raise ValueError(
                f"{cell.dataset} is read while training, so its images can be neither limited nor held out: "
                "leave the limit and the study out"
            )
        return _open_folder(datasets.find_root(root) / cell.dataset, cell, seed, device)
    data = datasets.load(cell.dataset, root)
    train, test = (
        split if limit is None else split.take(min(limit, len(split))) for split in (data.train, data.test)
    )
    cuts = _describe_cut(len(train), len(test), len(data.train), len(data.test))
    if held_out:
        train, test = train.hold_out(held_out)
        cuts = (*cuts, f"{held_out} training images held out and measured on, in place of test images")
    calibration = train.take(min(_CALIBRATION_IMAGES, len(train)))
    return CellData(len(data.classes), train.to(device), test.to(device), calibration.to(device), cuts)


def _describe_cut(train: int, test: int, all_train: int, all_test: int) -> tuple[str, ...]:
    if (train, test) == (all_train, all_test):
        return ()
    return (f"{train} training and {test} test images instead of {all_train} and {all_test}",)


def _open_folder(root: Path, cell: Cell, seed: int, device: torch.device) -> CellData:
    size = cell.size or 0
    workers = (os.cpu_count() or 1) // present_ranks().count
    train, test = (Folder(root, size, train=half, seed=seed, workers=workers) for half in (True, False))
    plain = Folder(root, size, train=True, augment=False)
    order = plain.shuffle(torch.Generator("cpu").manual_seed(0))
    pixels, labels = zip(*(plain[i] for i in order[:_CALIBRATION_IMAGES]), strict=True)
    calibration = Split(torch.stack(pixels), torch.tensor(labels, device="cpu"), plain.mean, plain.std)
    sizes = len(train), len(test)
    cuts = _describe_cut(*sizes, *_PUBLISHED.get(cell.dataset, sizes))
    return CellData(len(train.classes), train, test, calibration.to(device), cuts)
