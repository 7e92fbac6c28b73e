"""The progress of a training, and the checkpoint that stores it."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rheobase.io import read_tensors, require_matching, require_writable, write_tensors
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Split
from rheobase.training.recipe import Recipe
from rheobase.training.step import Learner

_KIND = "rheobase training, version 1"
_HEADER_BYTES = 2**20  # an upper estimate of the size of a checkpoint without its tensors


@dataclass(frozen=True)
class Epoch:
    """The measurements of one epoch of training.

    Attributes:
        number: Counted from one.
        loss: Mean over the epoch, on augmented images, while the weights change.
        accuracy: In percent, on the same images.
        learning_rate: Of the last step.
        seconds: Wall-clock time; of an epoch that was resumed, of the part after that.
        clips: The trained thresholds at the end of the epoch, by the names of their modules.
    """

    number: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float
    clips: dict[str, float]

    def __str__(self) -> str:
        return (
            f"epoch {self.number}: loss {self.loss:.4f}, training accuracy {self.accuracy:.2f} %, "
            f"learning rate {self.learning_rate:.4g}, {self.seconds:.1f} s"
        )


class TrainingState:
    """The position in a training, its measurements so far, and its checkpoint if it has one.

    Attributes:
        epoch: Number of finished epochs.
        step: Number of finished steps of the current epoch.
        steps_per_epoch: Number of steps of an epoch.
        history: The measurements of the finished epochs.
        starts: The trained thresholds before the first step.
    """

    def __init__(
        self, learner: Learner, recipe: Recipe, data: Split | Folder, steps: int, path: Path | None
    ) -> None:
        self.epoch = 0
        self.step = 0
        self.steps_per_epoch = steps
        self.history: list[Epoch] = []
        self.starts = learner.read_clips()
        self._learner = learner
        self._recipe = asdict(recipe)
        self._data = {} if path is None else _describe(data)
        self._path = path

    @property
    def done(self) -> int:
        """Number of finished steps in all."""
        return self.epoch * self.steps_per_epoch + self.step

    def finish_epoch(self, epoch: Epoch) -> None:
        """Store the measurements of an epoch and go to the next."""
        self.history.append(epoch)
        self.epoch += 1
        self.step = 0

    def resume(self) -> bool:
        """Restore the state of the checkpoint; return whether there is one.

        Raises:
            ValueError: It is damaged, or belongs to another recipe, architecture or dataset, to thresholds
                that started elsewhere, or to clips with other levels. The state and the network were not
                changed.
        """
        if self._path is None or not self._path.is_file():
            return False
        try:
            tensors, kept = read_tensors(self._path)
        except ValueError as error:
            raise ValueError(f"{error}; or remove it to start training from the beginning") from error
        if kept.get("kind") != _KIND:
            raise ValueError(f"{self._path} is not a training checkpoint; choose another file")
        # Older checkpoints have recipes with fewer settings, which were as the defaults are.
        defaults = {f.name: f.default for f in fields(Recipe) if f.name not in kept["recipe"]}
        self._require_same("recipe", defaults | kept["recipe"], self._recipe)
        # Older checkpoints describe their data by fewer fields.
        known = {name: value for name, value in self._data.items() if name in kept["dataset"]}
        self._require_same("dataset", kept["dataset"], known)
        self._require_same("start of its thresholds", kept["starts"], self.starts)
        present = self._learner.tensors()
        require_matching(present, tensors, self._path)
        levels = [name for name in present if name.endswith(".levels")]
        there, here = ({name: int(held[name]) for name in levels} for held in (tensors, present))
        self._require_same("number of levels", there, here)
        for name, tensor in present.items():
            tensor.copy_(tensors[name])
        self.epoch, self.step = kept["epoch"], kept["step"]
        unit = 1 if "unit" in kept else 100  # version 0.1 stored accuracies from 0 to 1
        self.history = [Epoch(**epoch | {"accuracy": unit * epoch["accuracy"]}) for epoch in kept["history"]]
        return True

    def require_writable(self) -> None:
        """Raise an OSError if checkpoints cannot be written."""
        if self._path is not None:
            size = sum(tensor.nbytes for tensor in self._learner.tensors().values())
            require_writable(self._path, size + _HEADER_BYTES)

    def save(self) -> None:
        """Write the checkpoint, if there is to be one."""
        if self._path is None:
            return
        kept = {
            "kind": _KIND,
            "recipe": self._recipe,
            "dataset": self._data,
            "epoch": self.epoch,
            "step": self.step,
            "starts": self.starts,
            "unit": "percent",
            "history": [asdict(epoch) for epoch in self.history],
        }
        write_tensors(self._path, self._learner.tensors(), kept)

    def _require_same(self, what: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        differences = [
            f"{name} is {kept.get(name)!r} there and {asked.get(name)!r} here"
            for name in sorted(kept.keys() | asked.keys())
            if kept.get(name) != asked.get(name)
        ]
        if differences:
            raise ValueError(
                f"{self._path} belongs to a training with another {what}: {'; '.join(differences)}. "
                f"Use the same {what}, choose another file, or remove it to start again"
            )


def finished_recipe(path: Path) -> Recipe | None:
    """The recipe of the training whose checkpoint this is, or None if it is missing or not finished."""
    if not path.exists():
        return None
    _, kept = read_tensors(path)
    if kept.get("kind") != _KIND or kept["epoch"] < kept["recipe"]["epochs"]:
        return None
    # A recipe of another version may have more settings; `TrainingState.resume` reports them.
    return Recipe(**{f.name: kept["recipe"][f.name] for f in fields(Recipe) if f.name in kept["recipe"]})


def _describe(data: Split | Folder) -> dict[str, Any]:
    described = {
        "size": len(data),
        "labels_crc32": _checksum(torch.as_tensor(data.labels, device="cpu")),
        "mean": [float(mean) for mean in data.mean],
        "std": [float(std) for std in data.std],
    }
    if isinstance(data, Split):
        return described | {"images_crc32": _checksum(data.images)}
    # Reading all pictures would take too long.
    return described | {"pixels": data.size, "augment": data.augment, "seed": data.seed}


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.cpu().contiguous().numpy().data)
