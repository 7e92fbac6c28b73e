"""Parquet shards of encoded pictures.

The smallest part of a shard that can be read is a row group. An epoch therefore reads row groups in random
order and shuffles the pictures of a few of them together.
"""

import json
from bisect import bisect_right
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from rheobase.training.datasets import pictures
from rheobase.training.datasets.pictures import Pictures

if TYPE_CHECKING:
    from PIL.Image import Image

_HALVES = {True: ("train",), False: ("test", "val", "validation")}
_WINDOW = 16  # row groups that are shuffled together, and cached by each process


def find_shards(root: Path, train: bool) -> list[Path]:
    """The shards of one split, in order: ``train-*.parquet`` or ``train/*.parquet``, also below ``data``.

    The other split is the first of ``test``, ``val`` and ``validation`` that has labels; the test split of
    ImageNet has none.
    """
    halves = [
        sorted([*folder.glob(f"{half}-*.parquet"), *folder.glob(f"{half}/*.parquet")])
        for half in _HALVES[train]
        for folder in (root, root / "data")
    ]
    present = [found for found in halves if found]
    if len(present) > 1:
        present = [found for found in present if _has_labels(found[0])] or present
    return present[0] if present else []


class Shards(Pictures):
    """The pictures of one split in Parquet shards.

    A column `image` holds encoded pictures, as bytes or as a structure with a field `bytes`; a column `label`
    integers from zero. Class names come from the metadata that the `datasets` library writes, if present;
    otherwise they are the labels.

    Args:
        paths: The shards of the split.
        training: The shards of the training split, which determine the classes; by default `paths`.
    """

    def __init__(self, paths: list[Path], training: list[Path]) -> None:
        self.labels: list[int] = []
        self._groups: list[tuple[Path, int]] = []
        self._starts: list[int] = []  # the index of each row group's first picture
        self._kept: OrderedDict[int, list[bytes]] = OrderedDict()
        for path in paths:
            for group, labels in enumerate(_read_labels(path)):
                self._groups.append((path, group))
                self._starts.append(len(self.labels))
                self.labels += labels
        if not self.labels:
            raise ValueError(f"{paths[0]} and the other shards hold no pictures")
        if min(self.labels) < 0:
            raise ValueError(
                f"{paths[0].parent} has the label {min(self.labels)}: is it a split without labels?"
            )
        self.classes = _name_classes(training or paths, self.labels)

    def decode(self, index: int) -> "Image":
        group = bisect_right(self._starts, index) - 1
        row = index - self._starts[group]
        path, number = self._groups[group]
        return pictures.decode(self._read(group)[row], name=f"{path}, row {row} of row group {number}")

    def shuffle(self, generator: torch.Generator) -> list[int]:
        order: list[int] = []
        ends = [*self._starts[1:], len(self.labels)]
        groups = pictures.permute(len(self._groups), generator)
        for first in range(0, len(groups), _WINDOW):
            window = [
                index for g in groups[first : first + _WINDOW] for index in range(self._starts[g], ends[g])
            ]
            order += [window[i] for i in pictures.permute(len(window), generator)]
        return order

    def _read(self, group: int) -> list[bytes]:
        """The pictures of a row group; the last few are cached."""
        if group in self._kept:
            self._kept.move_to_end(group)
            return self._kept[group]
        path, number = self._groups[group]
        # Without threads, which do not survive the fork into a DataLoader's workers.
        with _open(path, pre_buffer=False) as shard:
            column = shard.read_row_group(number, columns=["image"], use_threads=False).column("image")
        found = [image["bytes"] if isinstance(image, dict) else image for image in column.to_pylist()]
        self._kept[group] = found
        if len(self._kept) > _WINDOW:
            self._kept.popitem(last=False)
        return found


def _require_pyarrow() -> ModuleType:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("reading Parquet shards needs pyarrow: pip install pyarrow") from error
    found: ModuleType = parquet
    return found


def _open(path: Path, **options: Any) -> Any:
    """Open a shard and check its columns."""
    parquet = _require_pyarrow()
    from pyarrow import ArrowInvalid

    try:
        shard = parquet.ParquetFile(path, **options)
    except ArrowInvalid as error:
        raise ValueError(f"{path} is not a complete Parquet file: {error}; download it again") from error
    columns = shard.schema_arrow.names
    if missing := [name for name in ("image", "label") if name not in columns]:
        raise ValueError(f"{path} has no column {missing[0]!r}: it has {', '.join(columns)}")
    return shard


def _has_labels(path: Path) -> bool:
    return any(label >= 0 for group in _read_labels(path) for label in group)


def _read_labels(path: Path) -> list[list[int]]:
    """The labels of each row group."""
    with _open(path) as shard:
        groups = [
            shard.read_row_group(number, columns=["label"], use_threads=False).column("label").to_pylist()
            for number in range(shard.num_row_groups)
        ]
    for labels in groups:
        if wrong := [label for label in labels if not isinstance(label, int)]:
            raise ValueError(f"{path} has a label {wrong[0]!r}, expected an integer")
    return groups


def _name_classes(training: list[Path], labels: list[int]) -> tuple[str, ...]:
    with _open(training[0]) as shard:
        described = (shard.schema_arrow.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(described).get("info", {}).get("features", {})
    names = features.get("label", {}).get("names")
    if names is None:
        known = [label for path in training for group in _read_labels(path) for label in group]
        names = [str(label) for label in range(max(known) + 1)]
    if max(labels) >= len(names):
        raise ValueError(
            f"{training[0].parent} has the label {max(labels)}, but there are {len(names)} classes"
        )
    return tuple(names)
