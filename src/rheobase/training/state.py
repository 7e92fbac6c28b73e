"""The progress of a training, and the checkpoint that stores it."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rheobase.io import (
    digest,
    read_tensors,
    require_finite,
    require_matching,
    require_writable,
    restore,
    write_tensors,
)
from rheobase.network import QuantisedClip
from rheobase.training.datasets.folders import Folder
from rheobase.training.datasets.split import Split
from rheobase.training.recipe import Recipe
from rheobase.training.step import Learner

_KIND = "rheobase training, version 1"
_REMEDY = "or remove it to start training from the beginning"
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


@dataclass(frozen=True)
class Description:
    """What a checkpoint says besides its tensors; older ones lack the fields with a default.

    Attributes:
        kind: What the file is.
        recipe: The settings of the recipe by name; those of another version may be more or fewer.
        dataset: What is known of the images.
        epoch: As in `TrainingState`.
        step: As in `TrainingState`.
        starts: As in `TrainingState`.
        history: As in `TrainingState`.
        unit: Of accuracies: version 0.1 stored them from 0 to 1, and no unit.
        trained_for: What the network was prepared for; empty if that is not known.
    """

    kind: str
    recipe: dict[str, Any]
    dataset: dict[str, Any]
    epoch: int
    step: int
    starts: dict[str, float]
    history: list[Epoch]
    unit: str = ""
    trained_for: str = ""

    def __post_init__(self) -> None:
        epochs = self.known_recipe().epochs
        if min(self.epoch, self.step) < 0 or self.epoch + (self.step > 0) > epochs:
            raise ValueError(f"step {self.step} after epoch {self.epoch} is not one of its {epochs} epochs")
        if len(self.history) != self.epoch:
            raise ValueError(f"it has measurements of {len(self.history)} epochs after epoch {self.epoch}")

    def known_recipe(self) -> Recipe:
        """The recipe, as far as this version knows its settings."""
        known = {f.name: self.recipe[f.name] for f in fields(Recipe) if f.name in self.recipe}
        found: Recipe = restore(Recipe, known, "recipe")
        return found


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
        self,
        learner: Learner,
        recipe: Recipe,
        data: Split | Folder,
        steps: int,
        path: Path | None,
        trained_for: str,
    ) -> None:
        self.epoch = 0
        self.step = 0
        self.steps_per_epoch = steps
        self.history: list[Epoch] = []
        self.starts = learner.read_clips()
        self._learner = learner
        self._recipe = asdict(recipe)
        self._data = {} if path is None else _describe(data)
        self._trained_for = trained_for
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
            ValueError: It is damaged, or belongs to another method, recipe, architecture or dataset, to
                thresholds that started elsewhere, or to clips with other levels. The state and the network
                were not changed.
        """
        if self._path is None or not self._path.is_file():
            return False
        kept, tensors = _read(self._path)
        if kept.trained_for and self._trained_for and kept.trained_for != self._trained_for:
            raise self._another("method", f"{kept.trained_for} there and {self._trained_for} here")
        # Older checkpoints have recipes with fewer settings, which were as the defaults are.
        self._require_same("recipe", asdict(kept.known_recipe()) | kept.recipe, self._recipe)
        # Older checkpoints describe their data by fewer fields.
        known = {name: value for name, value in self._data.items() if name in kept.dataset}
        self._require_same("dataset", kept.dataset, known)
        self._require_same("start of its thresholds", kept.starts, self.starts)
        if kept.step > self.steps_per_epoch:
            raise _damaged(self._path, f"step {kept.step} of an epoch of {self.steps_per_epoch} steps")
        present = self._learner.tensors()
        require_matching(present, tensors, self._path)
        modules = self._learner.model.named_modules()
        levels = [f"model.{name}.levels" for name, module in modules if isinstance(module, QuantisedClip)]
        there, here = ({name: int(held[name]) for name in levels} for held in (tensors, present))
        self._require_same("number of levels", there, here)
        for name, tensor in present.items():
            tensor.copy_(tensors[name])
        self.epoch, self.step = kept.epoch, kept.step
        unit = 1 if kept.unit else 100
        self.history = [replace(epoch, accuracy=unit * epoch.accuracy) for epoch in kept.history]
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
        kept = Description(
            kind=_KIND,
            recipe=self._recipe,
            dataset=self._data,
            epoch=self.epoch,
            step=self.step,
            starts=self.starts,
            history=self.history,
            unit="percent",
            trained_for=self._trained_for,
        )
        content, tensors = asdict(kept), self._learner.tensors()
        write_tensors(self._path, tensors, content | {"digest": digest(content, tensors)})

    def _require_same(self, what: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        differences = [
            f"{name} is {kept.get(name)!r} there and {asked.get(name)!r} here"
            for name in sorted(kept.keys() | asked.keys())
            if kept.get(name) != asked.get(name)
        ]
        if differences:
            raise self._another(what, "; ".join(differences))

    def _another(self, what: str, differences: str) -> ValueError:
        return ValueError(
            f"{self._path} belongs to a training with another {what}: {differences}. "
            f"Use the same {what}, choose another file, {_REMEDY}"
        )


def finished_recipe(path: Path) -> Recipe | None:
    """The recipe of the training whose checkpoint this is, or None if it is missing or not finished."""
    if not path.exists():
        return None
    kept, _ = _read(path)
    recipe = kept.known_recipe()  # `TrainingState.resume` reports unknown settings
    return recipe if kept.epoch == recipe.epochs else None


def _read(path: Path) -> tuple[Description, dict[str, Tensor]]:
    """Read a checkpoint.

    Raises:
        ValueError: It is damaged, or not a checkpoint.
    """
    try:
        tensors, content = read_tensors(path)
    except ValueError as error:
        raise ValueError(f"{error}; {_REMEDY}") from error
    if content.get("kind") != _KIND:
        raise ValueError(f"{path} is not a training checkpoint; choose another file")
    written = content.pop("digest", None)  # which older checkpoints lack
    try:
        if written is None:
            require_finite(tensors, path)
        elif written != digest(content, tensors):
            raise ValueError("its content differs from what was written")
        return restore(Description, content), tensors
    except (TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, found: str) -> ValueError:
    return ValueError(f"{path} was damaged or changed: {found}; choose an earlier copy, {_REMEDY}")


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
