"""A cell's network: trained as its paper does, or taken from where it was, and its weights kept."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase import methods
from rheobase.analysis import accuracy
from rheobase.conversion import prepare
from rheobase.io import find_commit, present_ranks, require_writable, save_weights
from rheobase.methods import Method
from rheobase.papers import records
from rheobase.papers.candidates import READING, STATED, Candidate, choose, distinct
from rheobase.papers.data import CellData, load_data
from rheobase.papers.paper import Cell, Paper
from rheobase.papers.study import Study
from rheobase.training import Recipe, find_recipe, finished_recipe, models, train

_RECORD_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Training:
    """How to train a cell's network, and where its files go.

    Attributes:
        root: The folder with the datasets, as for `datasets.load`; ImageNet is its folder `imagenet`.
        trained_for: Train for this method instead of the paper's, by the same recipe. Methods without an
            activation of their own share one network with plain ReLU.
        candidate: Settings other than the paper's.
        chosen: Use the reading of the open settings that did best on held-out images, as recorded by
            `select`: on the networks of this "dataset", or on "all" of the paper; or the reading given here,
            as `Candidate.parse` reads it.
        held_out: Test on this many training images, which are then not trained on.
        pretrained: Use the network that comes with the package instead of training one.
        folder: The folder for records, in a subfolder named after the paper.
        runs: The folder for the checkpoint of the training, and for the weights.
        seed: Seed of the training and of the initial weights.
        epochs: Fewer epochs than the paper's; the records say so and are left out of the main tables.
        limit: The largest number of training and of test images, with the same consequence.
        size: Width of pictures that are read while training, with the same consequence.
        deterministic: Use only operations that give the same bits every time; see `Recipe`.
        device: The device; by default a GPU if there is one.
        commit: The commit of this package's source, if git cannot tell.
        progress: Whether to show progress bars.
    """

    root: Path | str | None = None
    trained_for: str | Method | None = None
    candidate: Candidate | None = None
    chosen: str | None = None
    held_out: int = 0
    pretrained: bool = False
    folder: Path | str = "results"
    runs: Path | str = "runs"
    seed: int = 0
    epochs: int | None = None
    limit: int | None = None
    size: int | None = None
    deterministic: bool = False
    device: str | torch.device | None = None
    commit: str | None = None
    progress: bool = True

    def method(self, own: Method) -> Method:
        """The method to train for, given the paper's own."""
        if self.trained_for is None or isinstance(self.trained_for, Method):
            return self.trained_for or own
        return methods.find(self.trained_for).example()


def train_cell(paper: Paper, cell: Cell, wanted: Training) -> Study:
    """Train a cell's network, or take it from its finished checkpoint, wherever that was trained."""
    folder = records.folder_of(paper.name, wanted.folder)
    measured = present_ranks().of_first(records.load_all(folder))
    device = torch.device(wanted.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    shipped = models.catalogue().get(cell.name, {}) if wanted.pretrained else {}
    method, stated = wanted.method(methods.get(paper.method)), find_recipe(cell.recipe)
    if "reading" in shipped:
        candidate = Candidate.parse(shipped["reading"])
    elif wanted.chosen is not None:
        candidate = _find_reading(paper, cell, wanted.chosen, measured)
    else:
        candidate = wanted.candidate or Candidate()
    (candidate,) = distinct([candidate.fitting(method)], stated, method)
    full, method = candidate.adapt(stated, method)
    chosen = wanted.chosen is not None or "reading" in shipped
    label = _label(paper, method, candidate, chosen)
    cell, cuts = _resize(cell, wanted.size)
    sizes: dict[str, Any] = {"limit": wanted.limit, "held_out": wanted.held_out, "seed": wanted.seed}
    data = load_data(cell, wanted.root, device, **sizes)
    require_writable(folder / "record.json", _RECORD_BYTES)
    recipe, cuts = _adapt(full, wanted, len(data.train), device), (*data.cuts, *cuts)
    if recipe.epochs != full.epochs:
        cuts = (f"trained for {recipe.epochs} epochs instead of {full.epochs}", *cuts)
    if wanted.pretrained:
        ann, recipe, checksum = _load_pretrained(cell, full, wanted, shipped, device)
        about: dict[str, Any] = {}
    else:
        tags = [
            label,
            f"held-out {wanted.held_out}" if wanted.held_out else "",
            f"limit {wanted.limit}" if wanted.limit else "",
            f"size {wanted.size}" if wanted.size else "",
            "deterministic" if wanted.deterministic else "",
        ]
        checkpoint = Path(wanted.runs) / paper.name / f"{_name_run(cell, recipe, tags)}.safetensors"
        built = candidate.of_network | ({} if cell.size is None else {"size": cell.size})
        ann, recipe, about = _train(
            cell.model, built, method, data, recipe, checkpoint, device, wanted.progress
        )
        told = {
            "model": cell.model, "classes": data.classes, "dataset": cell.dataset, "method": method.name,
            "recipe": cell.recipe, "reading": candidate.text, "seed": recipe.seed, "epochs": recipe.epochs,
        }  # fmt: skip
        checksum = _keep_weights(ann, checkpoint.with_suffix(".weights.safetensors"), told)
    if recipe.batch_size != full.batch_size:
        cuts = (*cuts, f"batches of {recipe.batch_size} images instead of {full.batch_size}")
    options = {
        "seed": wanted.seed, "epochs": wanted.epochs, "limit": wanted.limit, "size": wanted.size,
        "deterministic": wanted.deterministic, "trained-for": wanted.trained_for and method.name,
        "study": bool(wanted.held_out), "candidate": candidate.text if wanted.held_out else None,
        "chosen": None if wanted.chosen is None else candidate.text, "pretrained": wanted.pretrained,
    }  # fmt: skip
    return Study(
        paper=paper,
        cell=cell,
        ann=ann,
        ann_accuracy=accuracy(ann, data.test),
        train=data.train,
        calibration=data.calibration,
        test=data.test,
        recipe=recipe,
        trained=method,
        folder=Path(wanted.folder),
        commit=find_commit(wanted.commit),
        command=" ".join(["rheobase reproduce", paper.name, cell.name, *to_flags(options)]),
        label=label,
        shortened=cuts,
        training=about,
        checksum=checksum,
        progress=wanted.progress,
        measured=measured,
    )


def _find_reading(paper: Paper, cell: Cell, chosen: str, measured: Sequence[records.Record]) -> Candidate:
    """The reading of the open settings that was chosen: the one given, or the best of those recorded."""
    if chosen in ("dataset", "all"):
        return choose(measured, [c for c in paper.cells if chosen == "all" or c.dataset == cell.dataset])
    try:
        reading = Candidate.parse(chosen)
    except ValueError as error:
        raise ValueError(f"chosen takes dataset, all or a reading, and {error}") from None
    if not reading.is_reading:
        raise ValueError(
            f"{chosen} is not a reading of open settings, because the paper states "
            f"{', '.join(sorted(STATED))}: leave them out, or try other values on held-out images (--study)"
        )
    return reading


def _resize(cell: Cell, size: int | None) -> tuple[Cell, tuple[str, ...]]:
    """The cell with pictures of another size, and what that cuts."""
    if size is None or size == cell.size:
        return cell, ()
    if cell.size is None:
        raise ValueError(f"the images of {cell.dataset} have one size: leave the size out")
    return dataclasses.replace(cell, size=size), (f"pictures of {size} pixels instead of {cell.size}",)


def _label(paper: Paper, method: Method, candidate: Candidate, chosen: bool) -> str:
    """How the training differs from the paper's own, as text."""
    changes = str(candidate) if candidate.changes else ""
    if changes and chosen:
        changes = f"{READING}{changes}"
    own = method.name == paper.method
    if not own and not method.own_activation:
        return ", ".join(word for word in ("trained with plain ReLU", changes) if word)
    usual = methods.settings_of(candidate.adapt_method(methods.find(method.name).example()))
    settings = ", ".join(f"{n} {v}" for n, v in methods.settings_of(method).items() if v != usual[n])
    words = ("" if own else f"trained for {method.name}", settings, changes)
    return ", ".join(word for word in words if word)


def _name_run(cell: Cell, recipe: Recipe, tags: Sequence[str]) -> str:
    words = (re.sub(r"[^a-z0-9.]+", "-", tag.lower()) for tag in tags if tag)
    return "-".join([cell.name, *words, f"seed{recipe.seed}", f"epochs{recipe.epochs}"])


def _train(
    model: str,
    built: Mapping[str, Any],
    method: Method,
    data: CellData,
    recipe: Recipe,
    checkpoint: Path,
    device: torch.device,
    progress: bool,
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    """The trained network, the recipe it was trained by, and what is kept of its training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = models.build(model, data.classes, **built).to(device)
    if done := finished_recipe(checkpoint):
        # A finished training is measured on any machine, also on one that would train it differently.
        recipe = dataclasses.replace(recipe, compile=done.compile, precision=done.precision)
    trained = train(prepare(network, method), data.train, recipe, checkpoint=checkpoint, progress=progress)
    last = trained.history[-1]
    about = {
        "clips": last.clips,
        "training_accuracy": last.accuracy,
        "training_seconds": sum(epoch.seconds for epoch in trained.history),
    }
    return trained.model, recipe, about


def _keep_weights(ann: nn.Module, path: Path, told: Mapping[str, Any]) -> str:
    """Write the trained weights and return the checksum of the file; equal weights give equal files."""
    if not present_ranks().first:
        return ""
    save_weights(ann, path, told)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _load_pretrained(
    cell: Cell, recipe: Recipe, wanted: Training, shipped: Mapping[str, Any], device: torch.device
) -> tuple[nn.Module, Recipe, str]:
    """The network that comes with the package, how it was trained, and the checksum of its file."""
    if wanted.epochs is not None or wanted.held_out:
        raise ValueError(
            "a network that comes with the package was trained in full, on all images: leave epochs out "
            "(--epochs on the command line)"
        )
    other = wanted.trained_for or wanted.candidate or wanted.chosen or wanted.size or wanted.deterministic
    if other or (shipped.get("recipe"), shipped.get("seed")) != (cell.recipe, wanted.seed):
        raise ValueError(
            f"no trained network comes with the package for {cell.name}, seed {wanted.seed}"
            f"{f', {other}' if other else ''}: leave pretrained out, or choose from "
            f"{', '.join(models.catalogue())} with the seed it was trained with"
        )
    recipe = dataclasses.replace(recipe, seed=wanted.seed, epochs=shipped["epochs"])
    return models.pretrained(cell.name).to(device), recipe, shipped["sha256"]


def to_flags(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line has them; None and False are left out."""
    return [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in options.items()
        if value is not None and value is not False
    ]


def _adapt(recipe: Recipe, wanted: Training, images: int, device: torch.device) -> Recipe:
    """The paper's recipe as it can run here."""
    lasting = recipe.lasting(recipe.epochs if wanted.epochs is None else wanted.epochs)
    return dataclasses.replace(
        lasting.suited_to(device),
        seed=wanted.seed,
        batch_size=min(recipe.batch_size, images),
        deterministic=wanted.deterministic,
    )
