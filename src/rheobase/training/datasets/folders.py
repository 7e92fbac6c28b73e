"""Folders of pictures, read into memory or on demand, from class folders or Parquet shards."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import data

from rheobase.training.datasets import pictures
from rheobase.training.datasets.pictures import Pictures
from rheobase.training.datasets.shards import Shards, find_shards
from rheobase.training.datasets.split import Dataset, Split, normalise

if TYPE_CHECKING:
    from PIL.Image import Image

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class _Files(Pictures):
    """Pictures in files, sorted by class and name."""

    def __init__(self, classes: tuple[str, ...], paths: list[str], labels: list[int]) -> None:
        self.classes = classes
        self.paths = paths
        self.labels = labels

    def decode(self, index: int) -> "Image":
        return pictures.decode(self.paths[index])

    def shuffle(self, generator: torch.Generator) -> list[int]:
        return pictures.permute(len(self.paths), generator)


def read(root: Path, size: int | None = None) -> Dataset:
    """Decode a folder into memory; mean and std are those of its training images.

    Pictures stay grey if all of them are grey, and become RGB otherwise. With ``size``, the shorter side is
    scaled to it and the centre square kept. Use ``Folder`` for folders that do not fit in memory.
    """
    if size is not None and size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    pictures.require_pillow()
    train, test = _list_pictures(root, train=True), _list_pictures(root, train=False)
    arrays = _decode_alike([*train.paths, *test.paths], size)
    channels = max(len(pixels) for pixels in arrays)
    images = torch.from_numpy(np.stack([np.broadcast_to(a, (channels, *a.shape[1:])) for a in arrays]))
    mean, std = _measure(images[: len(train.paths)])
    return Dataset(
        name=root.resolve().name,
        classes=train.classes,
        train=Split(images[: len(train.paths)], torch.tensor(train.labels, device="cpu"), mean, std),
        test=Split(images[len(train.paths) :], torch.tensor(test.labels, device="cpu"), mean, std),
    )


class Folder(data.Dataset[tuple[Tensor, int]]):
    """A folder of pictures that are decoded on demand.

    They are files, ``train/<class>/*.jpg``, or rows of Parquet shards, ``train-*.parquet`` or
    ``train/*.parquet``, with a column ``image`` of encoded pictures and a column ``label``.

    Items are (uint8 pixels (3, size, size), label). With augmentation, a random part is scaled to the size
    and flipped with probability 1/2, as a function of (seed, epoch, index); without it, pictures are scaled
    to 8/7 of the size (256 for 224) and cropped at the centre.

    Args:
        root: The folder that contains ``train`` and ``test`` (or ``val``).
        size: Width and height in pixels.
        train: Whether to read the training split.
        augment: Whether to augment, by default the training split only. Set it to False for calibration.
        seed: Of the augmentation.
        workers: Number of processes that decode for ``batches``.
        mean: Of pixel/255 per channel, by default ImageNet's.
        std: Of pixel/255 per channel, by default ImageNet's.
    """

    def __init__(
        self,
        root: str | Path,
        size: int = 224,
        train: bool = True,
        augment: bool | None = None,
        seed: int = 0,
        workers: int = 0,
        mean: tuple[float, float, float] = _IMAGENET_MEAN,
        std: tuple[float, float, float] = _IMAGENET_STD,
    ) -> None:
        if size < 1:
            raise ValueError(f"size must be at least 1 pixel, got {size}")
        pictures.require_pillow()
        self._pictures = _open(Path(root).expanduser(), train)
        self.classes, self.labels = self._pictures.classes, self._pictures.labels
        self.size = size
        self.augment = train if augment is None else augment
        self.seed = seed
        self.workers = workers
        self.mean, self.std = mean, std
        # In shared memory, so that workers that stay alive between epochs see changes.
        self._epoch = torch.zeros((), dtype=torch.int64, device="cpu").share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, on which the augmentation depends."""
        self._epoch.fill_(epoch)

    def shuffle(self, generator: torch.Generator) -> list[int]:
        """A random order in which the pictures can be read fast."""
        return self._pictures.shuffle(generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        index = range(len(self))[index]  # also from the end, as for sequences
        picture = self._pictures.decode(index)
        if self.augment:
            rng = random.Random(f"{self.seed}/{self._epoch.item()}/{index}")
            picture = pictures.crop_at_random(picture, self.size, rng)
        else:
            picture = pictures.fit(picture, self.size * 8 // 7, self.size)
        return torch.from_numpy(pictures.to_pixels(picture)), self.labels[index]

    def normalise(self, images: Tensor) -> Tensor:
        """Turn uint8 pixels into network inputs, on their device."""
        return normalise(images, self.mean, self.std)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (normalised images, labels) in order; the last batch may be smaller."""
        for images, labels in data.DataLoader(self, batch_size, num_workers=self.workers):
            yield self.normalise(images), labels


def _open(root: Path, train: bool) -> Pictures:
    shards = find_shards(root, train)
    return Shards(shards, find_shards(root, train=True)) if shards else _list_pictures(root, train)


def _list_pictures(root: Path, train: bool) -> _Files:
    if not root.is_dir():
        raise FileNotFoundError(
            f"there is no folder {root}: expected one with train/<class>/ and val/<class>/ or test/<class>/"
        )
    half = root / "train" if train else _find_test(root)
    # Labels number the classes of the training split, even if the test split lacks some.
    classes = _list_classes(root / "train" if (root / "train").is_dir() else half)
    present = _list_classes(half)
    if unknown := sorted(set(present) - set(classes)):
        raise ValueError(f"{half} has classes that {root / 'train'} lacks: {', '.join(unknown)}")
    paths, labels = [], []
    for name in present:
        found = _find_files(half / name)
        if not found:
            raise ValueError(f"{half / name} has no pictures ({', '.join(_SUFFIXES)})")
        paths += found
        labels += [classes.index(name)] * len(found)
    return _Files(classes, paths, labels)


def _find_test(root: Path) -> Path:
    # ImageNet's test folder has no classes; papers report on its val folder.
    for half in (root / "test", root / "val"):
        if half.is_dir() and any(child.is_dir() for child in half.iterdir()):
            return half
    raise FileNotFoundError(f"{root} has no test/<class>/ or val/<class>/ folders")


def _list_classes(half: Path) -> tuple[str, ...]:
    names = (child.name for child in half.iterdir() if child.is_dir()) if half.is_dir() else ()
    classes = tuple(sorted(name for name in names if not name.startswith(".")))
    if not classes:
        raise FileNotFoundError(f"{half} is missing or has no class folders: expected {half}/<class>/*.png")
    return classes


def _find_files(folder: Path) -> list[str]:
    return sorted(
        os.path.join(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(_SUFFIXES) and not name.startswith(".")
    )


def _decode_alike(paths: list[str], size: int | None) -> list[npt.NDArray[np.uint8]]:
    arrays: list[npt.NDArray[np.uint8]] = []
    for path in paths:
        picture = pictures.decode(path, keep_grey=True)
        arrays.append(pictures.to_pixels(pictures.fit(picture, size, size) if size else picture))
        if arrays[-1].shape[1:] != arrays[0].shape[1:]:
            height, width = arrays[0].shape[1:]
            raise ValueError(
                f"{path} is {picture.width}×{picture.height} pixels, but {paths[0]} is {width}×{height}: "
                "pass size= (--size on the command line) to scale all pictures to one size"
            )
    return arrays


def _measure(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std of pixel/255 per channel, exactly, from the histogram."""
    level = torch.arange(256, dtype=torch.float64, device="cpu") / 255
    means, stds = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * level).sum()
        means.append(mean.item())
        # A constant channel is not scaled.
        stds.append((share * (level - mean).square()).sum().sqrt().item() or 1.0)
    return tuple(means), tuple(stds)
