"""Records: one JSON file per measured result, with the environment that produced it.

Records are written by the program, never by hand. Every number in a document comes from them.
"""

import hashlib
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from rheobase.io import Digits, conform, ensure_percent, read_document, read_fields, write_document

_IDENTITY = (
    "paper", "table", "dataset", "model", "method", "initial", "coding", "seed", "epochs", "images",
    "settings", "shortened",
)  # fmt: skip
# Fields of `extra` that belong together: a record with the first must have the others.
_TOGETHER = {"flop": ("steps", "ann_joules", "snn_joules", "sop"), "first_spike": ("fired",)}
Rounded = Annotated[float, Digits(8)]
"""A number as a record keeps it."""
Plain = Annotated[Any, Digits(8)]
"""Anything that JSON can hold, as a record keeps it."""


@dataclass(frozen=True)
class Record:
    """One result: a trained network, converted one way, run over a test set.

    Numbers are kept to eight significant digits, so that a record equals the one read back from its file.

    Attributes:
        paper: The paper it reproduces.
        table: The table or figure it was measured for.
        dataset: The dataset.
        model: The network.
        method: The conversion method.
        initial: The initial potential.
        coding: The input coding.
        seed: Seed of the training.
        epochs: Epochs of the training.
        images: Number of test images.
        ann_accuracy: Accuracy of the ANN, in percent.
        accuracy: Accuracy by number of steps, in percent.
        spikes_per_image: Mean spikes of an image by number of steps.
        sop_per_image: Mean synaptic operations of an image by number of steps.
        seconds: Duration of the evaluation.
        device: The device.
        versions: Versions of Python and the packages.
        commit: The commit of this package's source.
        command: The command line.
        date: The date, as YYYY-MM-DD.
        settings: Settings of the training and the method; `label` says how the network was trained, if not as
            in the paper.
        shortened: What was cut compared with the paper's own run; a record with any cut is left out of the
            main tables.
        extra: Further results for a figure or table; `weights` says what was done to the weights after
            training, `sha256` is the checksum of the file with the trained weights.
        profile: The arithmetic of the simulation; old files without it are "exact".
    """

    paper: str
    table: str
    dataset: str
    model: str
    method: str
    initial: str
    coding: str
    seed: int
    epochs: int
    images: int
    ann_accuracy: Rounded
    accuracy: dict[int, Rounded]
    spikes_per_image: dict[int, Rounded]
    sop_per_image: dict[int, Rounded]
    seconds: Rounded
    device: str
    versions: dict[str, str]
    commit: str
    command: str
    date: str
    settings: dict[str, Plain]
    shortened: tuple[str, ...] = ()
    extra: dict[str, Plain] = field(default_factory=dict)
    profile: str = "exact"

    def __post_init__(self) -> None:
        conform(self)
        ensure_percent("ann_accuracy", self.ann_accuracy)
        for step, value in self.accuracy.items():
            ensure_percent(f"accuracy after step {step}", value)
        for name in ("accuracy", "spikes_per_image", "sop_per_image"):
            if any(step < 1 for step in getattr(self, name)):
                raise ValueError(
                    f"{name} must be given after steps 1, 2, …, got step {min(getattr(self, name))}"
                )
            _ensure_at_least(0, name, *getattr(self, name).values())
        _ensure_at_least(1, "images", self.images)
        for name in ("epochs", "seconds"):
            _ensure_at_least(0, name, getattr(self, name))
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", self.date):
            raise ValueError(f"date must be YYYY-MM-DD, got {self.date!r:.80}")
        for name, others in _TOGETHER.items():
            if name in self.extra and (missing := [other for other in others if other not in self.extra]):
                raise ValueError(f"extra has {name!r} but lacks {missing[0]!r}")

    @property
    def identity(self) -> dict[str, Any]:
        """What was measured, without when and where; a second run of the same replaces the first."""
        identity = {name: getattr(self, name) for name in _IDENTITY}
        # Old records without a profile keep the names of their files.
        return identity | ({} if self.profile == "exact" else {"profile": self.profile})

    @property
    def source(self) -> str:
        """The commit, shortened, with a mark if the working tree had changes."""
        commit, modified, _ = self.commit.partition("-modified")
        return commit[:12] + modified

    @property
    def steps(self) -> int:
        """The last step with a result."""
        fired = (len(shares) for shares in self.extra.get("fired", []))
        return max([*self.accuracy, *self.spikes_per_image, *fired], default=0)

    @property
    def label(self) -> str:
        """How the network was trained, if not as in the paper."""
        return str(self.settings.get("label", ""))

    @property
    def weights(self) -> str:
        """What was done to the weights after training; empty if nothing."""
        return str(self.extra.get("weights", ""))

    @property
    def file_name(self) -> str:
        """The name of its file: readable, and unique for its identity."""
        words = (self.table, self.model, self.dataset, self.method, self.initial, f"seed{self.seed}")
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:8]
        return f"{'-'.join(_slug(word) for word in words)[:120]}-{digest}.json"


def folder_of(paper: str, folder: Path | str) -> Path:
    """Where the records of a paper are."""
    return Path(folder) / _slug(paper)


def write(record: Record, folder: Path | str) -> Path:
    """Write a record to `<folder>/<paper>/` and return the file's path.

    It replaces an earlier record of the same identity, unless that has more steps: then a warning says so.
    """
    path = folder_of(record.paper, folder) / record.file_name
    if (longer := _steps_in(path)) > record.steps:
        warnings.warn(
            f"{path} was not changed: it has {longer} steps, the new record {record.steps}; write shorter "
            "runs to another folder",
            stacklevel=2,
        )
        return path
    write_document(record, path, sort_keys=True)
    return path


def read(path: Path | str) -> Record:
    """Read a record.

    Raises:
        ValueError: The file is not JSON, lacks a field, has an unknown one, or one of the wrong type.
    """
    return read_document(Record, path)


def _steps_in(path: Path) -> int:
    """The number of steps of the record at a path; 0 if there is none."""
    try:
        return read(path).steps
    except (OSError, TypeError, ValueError):
        return 0


def load_all(folder: Path | str) -> list[Record]:
    """Read every record in a folder and its subfolders, sorted by path; a missing folder has none.

    Raises:
        ValueError: A file is no record of a paper's results.
    """
    paths = sorted(Path(folder).rglob("*.json"))
    if others := [path for path in paths if "paper" not in read_fields(path)]:
        raise ValueError(
            f"{others[0]} is not a record of `rheobase reproduce`: move it to another folder; "
            f"`rheobase report {others[0]}` shows the record of a single run"
        )
    return [read(path) for path in paths]


def _ensure_at_least(least: int, name: str, *values: float) -> None:
    if values and min(values) < least:
        raise ValueError(f"{name} must be at least {least}, got {min(values)}")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unnamed"
