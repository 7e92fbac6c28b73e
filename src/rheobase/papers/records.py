"""Records: one JSON file per measured result, with the environment that produced it.

Records are written by the program and never by hand; every number in a document comes from them.
"""

import errno
import hashlib
import json
import math
import re
import shutil
import warnings
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from rheobase.io import ensure_percent, replace_file

_DIGITS = 8  # significant ones; more than any measurement here has
_ROOM = 16 * 2**20
_IDENTITY = (
    "paper", "table", "dataset", "model", "method", "initial", "coding", "seed", "epochs", "images",
    "settings", "shortened",
)  # fmt: skip
# What figures and tables need of the extra, by the name that tells which it is for.
_TOGETHER = {"flop": ("steps", "ann_joules", "snn_joules", "sop"), "first_spike": ("fired",)}
# Fields that came later, and what holds for every record without them.
_LATER = {"profile": "exact"}


@dataclass(frozen=True)
class Record:
    """One result: a trained network, converted one way, run over a test set.

    Numbers are kept to eight significant digits, so that a record equals the one read back from its file.

    Attributes:
        paper: The paper it reproduces.
        table: The table or figure it was measured for.
        dataset: What it was trained and tested on.
        model: The network.
        method: The conversion method.
        initial: How membranes started.
        coding: How inputs became current.
        seed: Of the training.
        epochs: Of the training.
        images: How many test images.
        ann_accuracy: Percent right of the network before conversion.
        accuracy: Percent right after so many steps.
        spikes_per_image: Mean spikes of an image up to so many steps.
        sop_per_image: Mean synaptic operations of an image up to so many steps.
        seconds: How long the evaluation took.
        device: Where it ran.
        versions: Of Python and the packages.
        commit: Of this package's source.
        command: What was run.
        date: When, as YYYY-MM-DD.
        settings: Of the training and the method; under `label`, where the network was not trained as the
            paper trains it, in words how it was.
        shortened: What was cut against the paper's own run, in words; a record where anything was cut stays
            out of the main tables.
        extra: What a figure or table needs beyond this; under `weights`, in words what was done to them after
            training.
        profile: The arithmetic of the simulation, as in `rheobase.simulate`. A file without it is of the time
            when there was none but "exact".
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
    ann_accuracy: float
    accuracy: dict[int, float]
    spikes_per_image: dict[int, float]
    sop_per_image: dict[int, float]
    seconds: float
    device: str
    versions: dict[str, str]
    commit: str
    command: str
    date: str
    settings: dict[str, Any]
    shortened: tuple[str, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    profile: str = "exact"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Record).items():
            object.__setattr__(self, name, _canonical(name, getattr(self, name), kind))
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
        """What was measured, without when and where: a second run of the same replaces the first."""
        later = {name: getattr(self, name) for name, value in _LATER.items() if getattr(self, name) != value}
        return {name: getattr(self, name) for name in _IDENTITY} | later

    @property
    def source(self) -> str:
        """The commit, shortened; that the working tree had changes stays with it."""
        commit, modified, _ = self.commit.partition("-modified")
        return commit[:12] + modified

    @property
    def steps(self) -> int:
        """The last step that something is known of."""
        fired = (len(shares) for shares in self.extra.get("fired", []))
        return max([*self.accuracy, *self.spikes_per_image, *fired], default=0)

    @property
    def label(self) -> str:
        """In words how the network was trained, where it was not as the paper trains it."""
        return str(self.settings.get("label", ""))

    @property
    def weights(self) -> str:
        """In words what was done to the weights after training; empty where nothing was."""
        return str(self.extra.get("weights", ""))

    @property
    def file_name(self) -> str:
        """The name of its file: readable, and different for different identities."""
        words = (self.table, self.model, self.dataset, self.method, self.initial, f"seed{self.seed}")
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:8]
        return f"{'-'.join(_slug(word) for word in words)[:120]}-{digest}.json"


def write(record: Record, folder: Path | str) -> Path:
    """Write a record to `<folder>/<paper>/`, in one step, and give the file's path.

    It replaces an earlier one of the same, unless that ran for more steps: then a warning says so.
    """
    path = Path(folder) / _slug(record.paper) / record.file_name
    if (longer := _steps_in(path)) > record.steps:
        warnings.warn(
            f"{path} stays as it is: it has {longer} steps, and what was measured now {record.steps}; write "
            "shorter runs to another folder",
            stacklevel=2,
        )
        return path
    lines = []
    for name, value in sorted(asdict(record).items()):
        # Steps sort as numbers: text would put 16 before 2.
        lines.append(f" {json.dumps(name)}: {json.dumps(_sorted(value), ensure_ascii=False)}")
    replace_file(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return path


def read(path: Path | str) -> Record:
    """Read a record.

    Raises:
        ValueError: The file is not JSON, lacks a field, has one too many, or one of the wrong type.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is not a record: {error}; records are written by the program only"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a record: it holds a {type(content).__name__}, not named fields")
    known = [f.name for f in fields(Record)]
    content = _LATER | content
    if missing := [name for name in known if name not in content]:
        raise ValueError(f"{path} lacks the field {missing[0]!r}; measure the result again")
    if unknown := sorted(set(content) - set(known)):
        raise ValueError(f"{path} has a field {unknown[0]!r}, which records do not have; measure again")
    try:
        return Record(**{name: _from_json(name, content[name]) for name in known})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def _steps_in(path: Path) -> int:
    """The steps of the record at a path; none where there is no record."""
    try:
        return read(path).steps
    except (OSError, TypeError, ValueError):
        return 0


def load_all(folder: Path | str) -> list[Record]:
    """Read every record below a folder, in the order of their paths; a missing folder has none."""
    return [read(path) for path in sorted(Path(folder).rglob("*.json"))]


def ensure_writable(folder: Path | str) -> None:
    """Find out before the work whether its results can be written.

    Raises:
        OSError: The folder cannot be made or written to, or the disk is full.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / ".trial"
        try:
            trial.write_bytes(b"\0")
        finally:
            trial.unlink(missing_ok=True)  # processes that work together all try at once
    except OSError as error:
        raise type(error)(
            error.errno, f"results cannot be written to {folder} ({error.strerror}); choose another folder"
        ) from error
    free = shutil.disk_usage(folder).free
    if free < _ROOM:
        raise OSError(
            errno.ENOSPC,
            f"{folder} has {free / 2**20:.0f} MiB free and results need {_ROOM / 2**20:.0f} MiB; make room",
        )


def plain(name: str, value: Any) -> Any:
    """Anything that JSON can hold, as it would come back from a file."""
    if isinstance(value, dict):
        return {
            _canonical(f"a key of {name}", key, str): plain(f"{name}[{key!r}]", v) for key, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(f"an entry of {name}", v) for v in value]
    if isinstance(value, float):
        return _rounded(name, value)
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{name} should be text, numbers, lists or named values, got {type(value).__name__}")


def _from_json(name: str, value: Any) -> Any:
    """Undo what JSON does to a field: it knows no whole-number keys and no tuples."""
    kind = get_type_hints(Record)[name]
    if kind == dict[int, float] and isinstance(value, dict):
        try:
            return {int(step): number for step, number in value.items()}
        except ValueError:
            raise TypeError(f"{name} should be given by steps, got {list(value)!r:.80}") from None
    return tuple(value) if get_origin(kind) is tuple and isinstance(value, list) else value


def _canonical(name: str, value: Any, kind: Any) -> Any:
    """A field's value as it is kept; an error that names the field where it is of another type."""
    if kind is Any:
        return plain(name, value)
    base: Any = get_origin(kind) or kind
    allowed: Any = (int, float) if base is float else base
    if not isinstance(value, allowed) or (isinstance(value, bool) and base is not bool):
        raise TypeError(f"{name} should be {_describe(kind)}, got {value!r:.80}")
    if base is dict:
        of_key, of_value = get_args(kind)
        items = {
            _canonical(f"a key of {name}", key, of_key): _canonical(f"{name}[{key!r}]", v, of_value)
            for key, v in value.items()
        }
        return dict(sorted(items.items()))
    if base is tuple:
        return tuple(_canonical(f"an entry of {name}", v, get_args(kind)[0]) for v in value)
    return _rounded(name, value) if base is float else value


def _ensure_at_least(least: int, name: str, *values: float) -> None:
    if values and min(values) < least:
        raise ValueError(f"{name} must be at least {least}, got {min(values)}")


def _rounded(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{name} should be a finite number, got {value}")
    return float(f"{value:.{_DIGITS}g}")


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(v) for v in value] if isinstance(value, list | tuple) else value


def _describe(kind: Any) -> str:
    words = {str: "text", int: "a whole number", float: "a number"}
    if kind in words:
        return words[kind]
    if get_origin(kind) is tuple:
        return "a tuple of texts"
    return "numbers by step" if kind == dict[int, float] else "values by name"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "unnamed"
