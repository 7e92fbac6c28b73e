"""The datasets that have a name, one file each.

A dataset is found by being here: every module of this folder with a `SOURCE` is registered under its name.
"""

from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

from rheobase.io import collect, find_name
from rheobase.training.augmentation import Augmentation, Normalise
from rheobase.training.datasets.split import Dataset


class Source(ABC):
    """A dataset that is loaded by its name."""

    name: str

    @abstractmethod
    def read(self, root: Path, download: bool) -> Dataset:
        """Read the dataset from below `root`, after a download if it is missing and `download` is true."""

    def augment(self, normalise: Normalise) -> Augmentation:
        """The augmentation that is customary for it, which recipes select by the dataset's name."""
        return Augmentation((normalise,))


@cache
def _registry() -> dict[str, Source]:
    return collect(__package__, "SOURCE", Source)  # type: ignore[type-abstract]


def names() -> list[str]:
    """The names of all datasets."""
    return sorted(_registry())


def find(name: str) -> Source:
    """Return a dataset's source by its name.

    Raises:
        ValueError: The name is unknown; the message suggests the nearest.
    """
    return find_name("dataset", name, _registry(), hint="or the path of a folder")
