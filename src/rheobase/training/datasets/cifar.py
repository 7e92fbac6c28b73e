"""CIFAR-10 and CIFAR-100 in their official python layout (A. Krizhevsky, 2009)."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from rheobase.training.datasets import archives
from rheobase.training.datasets.pickles import read_plain
from rheobase.training.datasets.split import Dataset, Split

_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Source:
    """One CIFAR: where it is published, how its files are laid out, and what they must hold."""

    url: str
    md5: str
    folder: str
    meta: str
    prefix: str  # of the entries "labels" and "label_names"
    train: dict[str, int]  # its files, and how many images each holds
    test: dict[str, int]
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digests: dict[str, str]  # of each split, see digest()

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that is read."""
        return (*self.train, *self.test, self.meta)


SOURCES = {
    "cifar10": Source(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        folder="cifar-10-batches-py",
        meta="batches.meta",
        prefix="",
        train={f"data_batch_{i}": 10_000 for i in range(1, 6)},
        test={"test_batch": 10_000},
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        digests={
            "train": "55a61f79a40ece2ceda9fb5f9f7078f6ea2fc4952489cef56682bcf92cfcc260",
            "test": "325704b01eb92e1e2a6215ae6a916bb7db7de054af0c496be1c7be2e0fcfbf5f",
        },
    ),
    "cifar100": Source(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        folder="cifar-100-python",
        meta="meta",
        prefix="fine_",
        train={"train": 50_000},
        test={"test": 10_000},
        classes=100,
        mean=(129.3 / 255, 124.1 / 255, 112.4 / 255),
        std=(68.2 / 255, 65.4 / 255, 70.4 / 255),
        digests={
            "train": "6d2a03c47c105e4c34d3a2ff16c2803e8df0e5d6fa0c631e46663a327aeac573",
            "test": "381b7d98ce1e9b98232a8df0db0a22992654c39ff2433270656ab8ace5a45e65",
        },
    ),
}


def read(name: str, root: Path, download: bool = False) -> Dataset:
    """Read a CIFAR from below root, after unpacking or fetching its archive where the folder is missing."""
    source = SOURCES[name]
    folder = root / source.folder
    if not folder.is_dir():
        _obtain(source, folder, download)
    if missing := [file for file in source.files if not (folder / file).is_file()]:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)}: remove the folder and load again with download=True"
        )
    classes = _read_classes(source, folder)
    return Dataset(
        name, classes, train=_read_split(source, folder, "train"), test=_read_split(source, folder, "test")
    )


def digest(rows: npt.NDArray[np.uint8], labels: list[int]) -> str:
    """Compute the SHA-256 of the sorted SHA-256s of every (label, pixels).

    It does not depend on the order of the images: copies of CIFAR-100 that are sorted by class are about.
    """
    records = sorted(
        hashlib.sha256(bytes([label]) + row.tobytes()).digest()
        for row, label in zip(rows, labels, strict=True)
    )
    return hashlib.sha256(b"".join(records)).hexdigest()


def _obtain(source: Source, folder: Path, download: bool) -> None:
    archive = folder.parent / source.url.rpartition("/")[2]
    if not archive.exists():
        if not download:
            raise FileNotFoundError(
                f"there is no folder {folder}: fetch {source.url} and put it at {archive}, or let "
                "rheobase.training.datasets.load(…, download=True) do so; RHEOBASE_DATA, root= and --root "
                "say where data lies"
            )
        archives.download(source.url, source.md5, archive)
    archives.unpack(archive, source.md5, folder, source.files)


def _read_classes(source: Source, folder: Path) -> tuple[str, ...]:
    path, entry = folder / source.meta, f"{source.prefix}label_names"
    names = read_plain(path).get(entry)
    if not isinstance(names, list) or len(names) != source.classes:
        raise ValueError(f"{path} should list {source.classes} class names as {entry!r}, got {names!r:.80}")
    return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names)


def _read_split(source: Source, folder: Path, half: str) -> Split:
    files = source.train if half == "train" else source.test
    parts = [_read_batch(source, folder / file, count) for file, count in files.items()]
    rows = np.concatenate([pixels for pixels, _ in parts])
    labels = [label for _, part in parts for label in part]
    found = digest(rows, labels)
    if found != source.digests[half]:
        raise ValueError(
            f"the {half} images in {folder} ({', '.join(files)}) are not the published ones: "
            f"SHA-256 {found}, expected {source.digests[half]}; "
            f"remove the folder and fetch {source.url} again"
        )
    images = torch.from_numpy(rows).view(-1, 3, 32, 32)
    return Split(images, torch.tensor(labels, device="cpu"), source.mean, source.std)


def _read_batch(source: Source, path: Path, count: int) -> tuple[npt.NDArray[np.uint8], list[int]]:
    content = read_plain(path)
    pixels, labels = content.get("data"), content.get(f"{source.prefix}labels")
    shape = (count, _PIXELS)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != shape:
        found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise ValueError(f"{path} should hold 'data' as uint8 {shape}, got {found}: cut short or not CIFAR")
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    valid = range(source.classes)
    if (
        not isinstance(labels, list)
        or len(labels) != count
        or not all(isinstance(label, int) and label in valid for label in labels)
    ):
        raise ValueError(
            f"{path} should hold '{source.prefix}labels' as {count} whole numbers below {source.classes}"
        )
    return pixels, labels
