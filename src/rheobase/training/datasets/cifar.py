"""The official Python layout of CIFAR-10 and CIFAR-100 (A. Krizhevsky, 2009)."""

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rheobase.training.augmentation import Augmentation, AutoAugment, Cutout, Flip, Normalise, RandomCrop
from rheobase.training.datasets import archives
from rheobase.training.datasets.registry import Source
from rheobase.training.datasets.split import Dataset, Split

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar(Source):
    """One CIFAR: where it is published, its files and what they must contain.

    Attributes:
        name: The name to load it by.
        url: Of the archive.
        md5: Of the archive.
        folder: The folder in the archive.
        meta: The file with the names of the classes.
        prefix: Of the entries "labels" and "label_names".
        train: The files of the training images, with the number of images in each.
        test: The files of the test images.
        classes: The number of classes.
        mean: Of pixel/255 per channel.
        std: Of pixel/255 per channel.
        cutout: Side of the square that the augmentation cuts out.
        digests: Of each split; see `digest`.
    """

    name: str
    url: str
    md5: str
    folder: str
    meta: str
    prefix: str
    train: dict[str, int]
    test: dict[str, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    cutout: int
    digests: dict[str, str]

    def read(self, root: Path, download: bool) -> Dataset:
        """Read the folder below `root`, after unpacking or downloading the archive if it is missing."""
        folder, files = root / self.folder, (*self.train, *self.test, self.meta)
        if not folder.is_dir():
            self._obtain(folder, files, download)
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise FileNotFoundError(
                f"{folder} lacks {', '.join(missing)}: remove the folder and load again with download=True"
            )
        classes = self._read_classes(folder / self.meta)
        train, test = (self._read_split(folder, half) for half in ("train", "test"))
        return Dataset(self.name, classes, train, test)

    def augment(self, normalise: Normalise) -> Augmentation:
        """Crop, flip, AutoAugment, normalise and cutout, as in the paper."""
        return Augmentation((RandomCrop(4), Flip(), AutoAugment(), normalise, Cutout(self.cutout)))

    def _obtain(self, folder: Path, files: tuple[str, ...], download: bool) -> None:
        archive = folder.parent / self.url.rpartition("/")[2]
        if not archive.exists():
            if not download:
                raise FileNotFoundError(
                    f"there is no folder {folder}: download {self.url} to {archive}, or call "
                    "rheobase.training.datasets.load(…, download=True); set the folder of the data by "
                    "RHEOBASE_DATA, root= or --root"
                )
            archives.download(self.url, self.md5, archive)
        archives.unpack(archive, self.md5, folder, files)

    def _read_classes(self, path: Path) -> tuple[str, ...]:
        entry = f"{self.prefix}label_names"
        names = _read_pickle(path).get(entry)
        if not isinstance(names, list) or len(names) != self.classes:
            raise ValueError(f"{path} should list {self.classes} class names as {entry!r}, got {names!r:.80}")
        return tuple(_text(name) for name in names)

    def _read_split(self, folder: Path, half: str) -> Split:
        files = self.train if half == "train" else self.test
        parts = [self._read_batch(folder / file, count) for file, count in files.items()]
        rows = np.concatenate([pixels for pixels, _ in parts])
        labels = [label for _, part in parts for label in part]
        found = digest(rows, labels)
        if found != self.digests[half]:
            raise ValueError(
                f"the {half} images in {folder} ({', '.join(files)}) are not the published ones: SHA-256 "
                f"{found}, expected {self.digests[half]}; remove the folder and download {self.url} again"
            )
        images = torch.from_numpy(rows).view(-1, 3, 32, 32)
        return Split(images, torch.tensor(labels, device="cpu"), self.mean, self.std)

    def _read_batch(self, path: Path, count: int) -> tuple[npt.NDArray[np.uint8], list[int]]:
        content, shape = _read_pickle(path), (count, _PIXELS)
        pixels, labels = content.get("data"), content.get(f"{self.prefix}labels")
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != shape:
            found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else repr(pixels)[:40]
            raise ValueError(f"{path} should hold 'data' as uint8 {shape}, got {found}: is it CIFAR?")
        labels = labels.tolist() if isinstance(labels, np.ndarray) else labels
        valid = range(self.classes)
        if (
            not isinstance(labels, list)
            or len(labels) != count
            or not all(isinstance(label, int) and label in valid for label in labels)
        ):
            raise ValueError(
                f"{path} should hold '{self.prefix}labels' as {count} integers below {self.classes}"
            )
        return pixels, labels


def digest(rows: npt.NDArray[np.uint8], labels: list[int]) -> str:
    """Compute the SHA-256 of the sorted SHA-256s of every (label, pixels).

    It does not depend on the order of the images, since some copies of CIFAR-100 are sorted by class.
    """
    records = sorted(
        hashlib.sha256(bytes([label]) + row.tobytes()).digest()
        for row, label in zip(rows, labels, strict=True)
    )
    return hashlib.sha256(b"".join(records)).hexdigest()


class _Unpickler(pickle.Unpickler):
    """Builds numbers, text, lists, dicts and numpy arrays; any other name in a pickle is refused."""

    def find_class(self, module: str, name: str) -> Any:
        # numpy.core became numpy._core in numpy 2; the published files have the old name.
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.ndarray(0).__reduce__()[0]
        if module == "numpy" and name in ("dtype", "ndarray"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which CIFAR does not need")


def _read_pickle(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path} cannot be read: {str(error) or type(error).__name__}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}, expected a dict")
    return {_text(key): value for key, value in content.items()}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
