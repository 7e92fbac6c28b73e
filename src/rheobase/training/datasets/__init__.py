"""Images and labels: the embedded digits, CIFAR-10 and CIFAR-100, and folders of pictures."""

import os
from pathlib import Path

from rheobase.training.datasets import folders
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.registry import find, names
from rheobase.training.datasets.split import Dataset, Split, find_largest

__all__ = ["Dataset", "Folder", "Split", "find", "find_largest", "load", "names"]


def load(
    name: str | Path, root: str | Path | None = None, download: bool = False, size: int | None = None
) -> Dataset:
    """Load a dataset into memory.

    Args:
        name: One of `names()`, such as "digits" or "cifar10", or the path of a folder that contains
            ``train/<class>/*.png`` and ``test/<class>/*.png`` (or ``val``).
        root: The folder that contains the CIFAR folders. The default is the environment variable
            ``RHEOBASE_DATA``, or ``~/.cache/rheobase`` if that is not set.
        download: Whether to download CIFAR from its authors' page if ``root`` does not contain it.
        size: For a folder of pictures of different sizes: scale the shorter side to this many pixels and keep
            the centre square.
    """
    if name == "":
        raise ValueError(f"the name of the images is empty: give {', '.join(names())} or a folder")
    if name in names():
        if size is not None:
            raise ValueError(f"size= is for folders of pictures; {name} has its own size: leave it out")
        return find(str(name)).read(find_root(root), download)
    folder = Path(name).expanduser()
    if isinstance(name, str) and not folder.exists() and folder.name == name:
        find(name)
    return folders.read(folder, size)


def find_root(root: str | Path | None) -> Path:
    """The folder of the datasets: the given one, else ``RHEOBASE_DATA``, else ``~/.cache/rheobase``."""
    # An empty variable counts as unset: Path("") would mean the working directory.
    return Path(root or os.environ.get("RHEOBASE_DATA") or "~/.cache/rheobase").expanduser()
