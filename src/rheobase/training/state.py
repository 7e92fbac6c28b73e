"""How far a training has come, and the checkpoint that remembers it."""

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
from rheobase.training.step import Descent

_KIND = "rheobase training, version 1"
_HEADER_BYTES = 2**20  # a generous guess at what a checkpoint holds beside its tensors


@dataclass(frozen=True)
class Epoch:
    """What was measured in one epoch of training.

    Attributes:
        number: Counted from one.
        loss: Mean over the epoch, on augmented images, while the weights were moving.
        accuracy: Accuracy on these images in percent, likewise.
        learning_rate: Of the last step.
        seconds: Wall-clock time; after a resumption, of the part since then.
        clips: Each trained threshold at the end, by the name of its module.
    """

    number: int
    loss: float
    accuracy: float
    learning_rate: float
    seconds: float
    clips: dict[str, float]

    def __str__(self) -> str:
        return (
            f"epoch {self.number}: loss {self.loss:.4f}, accuracy in training {self.accuracy:.2f} %, "
            f"rate {self.learning_rate:.4g}, {self.seconds:.1f} s"
        )


class Journal:
    """The place a training has come to, what it measured on the way, and its checkpoint if it keeps one.

    Attributes:
        epoch: Epochs behind us.
        step: Steps of the present epoch behind us.
        steps_per_epoch: How many an epoch has.
        history: What was measured in the epochs behind us.
        starts: The trained thresholds before the first step.
    """

    def __init__(
        self, descent: Descent, recipe: Recipe, data: Split | Folder, steps: int, path: Path | None
    ) -> None:
        self.epoch = 0
        self.step = 0
        self.steps_per_epoch = steps
        self.history: list[Epoch] = []
        self.starts = descent.read_clips()
        self._descent = descent
        self._recipe = asdict(recipe)
        self._data = {} if path is None else _describe(data)
        self._path = path

    @property
    def done(self) -> int:
        """Steps behind us in all."""
        return self.epoch * self.steps_per_epoch + self.step

    def close(self, epoch: Epoch) -> None:
        """Enter what an epoch gave and turn to the next."""
        self.history.append(epoch)
        self.epoch += 1
        self.step = 0

    def resume(self) -> bool:
        """Take the training to where the checkpoint left it; tell whether there is a checkpoint.

        Raises:
            ValueError: It is damaged, or of another recipe, architecture or dataset. Nothing was read then.
        """
        if self._path is None or not self._path.is_file():
            return False
        try:
            tensors, kept = read_tensors(self._path)
        except ValueError as error:
            raise ValueError(f"{error}; or remove it, and the training begins anew") from error
        if kept.get("kind") != _KIND:
            raise ValueError(f"{self._path} is not the checkpoint of a training; name another file")
        self._require_same("recipe", kept["recipe"], self._recipe)
        # Of older checkpoints' data less is known.
        known = {name: value for name, value in self._data.items() if name in kept["dataset"]}
        self._require_same("dataset", kept["dataset"], known)
        present = self._descent.tensors()
        require_matching(present, tensors, self._path)
        for name, tensor in present.items():
            tensor.copy_(tensors[name])
        self.epoch, self.step, self.starts = kept["epoch"], kept["step"], kept["starts"]
        share = 1 if "unit" in kept else 100  # version 0.1 kept accuracies as shares
        self.history = [Epoch(**{**e, "accuracy": share * e["accuracy"]}) for e in kept["history"]]
        return True

    def require_writable(self) -> None:
        """Find out before the training whether checkpoints can be written at all."""
        if self._path is not None:
            size = sum(tensor.nbytes for tensor in self._descent.tensors().values())
            require_writable(self._path, size + _HEADER_BYTES)

    def save(self) -> None:
        """Replace the checkpoint by the present state, if one is kept."""
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
        write_tensors(self._path, self._descent.tensors(), kept)

    def _require_same(self, what: str, kept: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
        differences = [
            f"{name} {kept.get(name)!r} there and {asked.get(name)!r} here"
            for name in sorted(kept.keys() | asked.keys())
            if kept.get(name) != asked.get(name)
        ]
        if differences:
            raise ValueError(
                f"{self._path} belongs to a training with another {what}: {'; '.join(differences)}. "
                f"Go on with the same {what}, name another file, or start anew with resume=False"
            )


def finished_recipe(path: Path) -> Recipe | None:
    """The recipe of a training whose checkpoint is here and came to its end, if it is so."""
    if not path.exists():
        return None
    _, kept = read_tensors(path)
    if kept.get("kind") != _KIND or kept["epoch"] < kept["recipe"]["epochs"]:
        return None
    # Another version's recipe may have settings more; `Journal.resume` tells which.
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
    # The pictures themselves would take too long to read.
    return described | {"pixels": data.size, "augment": data.augment, "seed": data.seed}


def _checksum(tensor: Tensor) -> int:
    return zlib.crc32(tensor.cpu().contiguous().numpy().data)
