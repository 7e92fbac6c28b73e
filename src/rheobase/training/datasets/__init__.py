"""Images and labels: the embedded digits, CIFAR-10 and CIFAR-100, and folders of pictures."""

import os
from pathlib import Path

from rheobase.io import Data, batches, find_name
from rheobase.training.datasets import cifar, digits, folders
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Dataset, Split

__all__ = ["Data", "Dataset", "Folder", "Split", "batches", "load"]


def load(
    name: str | Path, root: str | Path | None = None, download: bool = False, size: int | None = None
) -> Dataset:
    """Load a dataset into memory.

    Args:
        name: "digits", "cifar10", "cifar100", or the path of a folder with ``train/<class>/*.png`` and
            ``test/<class>/*.png`` (or ``val``) below it.
        root: Where the CIFAR folders lie; the environment variable ``RHEOBASE_DATA`` unless given, or
            ``~/.cache/rheobase`` where that is not set. The other datasets do not need it.
        download: Whether to fetch CIFAR from its authors' page where ``root`` does not hold it.
        size: For a folder of pictures of many sizes: scale the shorter side to this many pixels and keep
            the centre square.
    """
    known = ("digits", *cifar.SOURCES)
    if name in known:
        if size is not None:
            raise ValueError(f"size= is for folders of pictures; {name} has a size of its own: leave it out")
        return digits.read() if name == "digits" else cifar.read(str(name), find_root(root), download)
    folder = Path(name).expanduser()
    if isinstance(name, str) and not folder.exists() and folder.name == name:
        find_name("dataset", name, dict.fromkeys(known), hint="or the path of a folder")
    return folders.read(folder, size)


def find_root(root: str | Path | None = None) -> Path:
    """Where datasets lie: as given, else what ``RHEOBASE_DATA`` says, else ``~/.cache/rheobase``."""
    # An empty variable counts as unset: Path("") would quietly mean the working directory.
    return Path(root or os.environ.get("RHEOBASE_DATA") or "~/.cache/rheobase").expanduser()
