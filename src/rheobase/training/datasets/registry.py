"""The datasets that have a name, one file each.

A dataset is found by being here: every module of this folder with a `SOURCE` is registered under its name.
"""

import importlib
import pkgutil
import sys
from abc import ABC, abstractmethod
from functools import cache
from pathlib import Path

from rheobase.io import find_name
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
    found: dict[str, Source] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(sys.modules[__package__].__path__)):
        source = getattr(importlib.import_module(f"{__package__}.{module}"), "SOURCE", None)
        if isinstance(source, Source):
            if source.name in found:
                raise RuntimeError(f"two datasets are called {source.name!r}")
            found[source.name] = source
    return found


def names() -> list[str]:
    """The names of all datasets."""
    return sorted(_registry())


def find(name: str) -> Source:
    """Return a dataset's source by its name.

    Raises:
        ValueError: The name is unknown; the message suggests the nearest.
    """
    return find_name("dataset", name, _registry(), hint="or the path of a folder")
