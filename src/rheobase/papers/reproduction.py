"""Reproduction: one cell of a paper's table, from the data to the records."""

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase import methods
from rheobase.analysis import accuracy
from rheobase.conversion import prepare
from rheobase.io import find_commit, joined, require_writable
from rheobase.methods import Method
from rheobase.papers import records, registry
from rheobase.papers.candidates import CANDIDATES, Candidate, choose, distinct
from rheobase.papers.data import CellData, load_data
from rheobase.papers.experiments import PARTS, find_tuning, measure_candidate
from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.papers.study import Study
from rheobase.simulation import find_profile
from rheobase.training import CollapseError, Recipe, find_recipe, finished_recipe, models, train

_RECORD_BYTES = 8 * 2**20
_HELD_OUT = 5000  # a tenth of CIFAR


@dataclass(frozen=True)
class Training:
    """How to train a cell's network, and where its files go.

    Attributes:
        root: The folder with the datasets, as for `datasets.load`; ImageNet is its folder `imagenet`.
        trained_for: Train for this method instead of the paper's, by the same recipe. Methods without an
            activation of their own share one network with plain ReLU.
        candidate: Settings other than the paper's.
        chosen: Use the settings that did best on held-out images, as recorded by `select`.
        held_out: Test on this many training images, which are then not trained on.
        pretrained: Use the network that comes with the package instead of training one.
        folder: The folder for records, in a subfolder named after the paper.
        runs: The folder for the checkpoint of the training.
        seed: Seed of the training and of the initial weights.
        epochs: Fewer epochs than the paper's; the records say so and are left out of the main tables.
        limit: The largest number of training and of test images, with the same consequence.
        device: The device; by default a GPU if there is one.
        commit: The commit of this package's source, if git cannot tell.
        progress: Whether to show progress bars.
    """

    root: Path | str | None = None
    trained_for: str | Method | None = None
    candidate: Candidate | None = None
    chosen: bool = False
    held_out: int = 0
    pretrained: bool = False
    folder: Path | str = "results"
    runs: Path | str = "runs"
    seed: int = 0
    epochs: int | None = None
    limit: int | None = None
    device: str | torch.device | None = None
    commit: str | None = None
    progress: bool = True

    def method(self, own: Method) -> Method:
        """The method to train for, given the paper's own."""
        if self.trained_for is None or isinstance(self.trained_for, Method):
            return self.trained_for or own
        return methods.find(self.trained_for).example()


def reproduce(
    paper: str | Paper,
    cell: str,
    root: Path | str | None = None,
    *,
    parts: Sequence[str] = ("table",),
    steps: int | None = None,
    profile: str = "exact",
    names: Sequence[str] | None = None,
    tuning: Mapping[str, Any] | None = None,
    **training: Any,
) -> list[Record]:
    """Train a cell's network as its paper does, convert it, measure it and write the records.

    An interrupted training is resumed from its checkpoint. Each record is written as soon as it is measured,
    and not measured again. Under torchrun the processes share the training, and the first one writes.

    Args:
        paper: A paper or its name.
        cell: The name of one of its cells.
        root: The folder with the datasets.
        parts: What to measure: names from `rheobase.papers.experiments.PARTS`.
        steps: The largest number of steps of every measurement.
        profile: The arithmetic of the simulations, as in `rheobase.simulate`.
        names: The methods of the part `methods`; by default all.
        tuning: Settings of the further training of the part `tuned`, such as `epochs`.
        **training: How to train: the fields of `Training`.

    Raises:
        ValueError: Paper, cell, part, method, recipe or a setting of the tuning are unknown, or a setting is
            given for a part that is not measured.
        OSError: The records or the checkpoint cannot be written, or the data is missing; raised before
            anything is trained.
    """
    paper = registry.get(paper)
    chosen = paper.cell(cell)
    wanted = Training(root=root, **training)
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    for name in names or ():
        methods.find(name)
    for given, part in ((names, "methods"), (tuning, "tuned")):
        if given and part not in parts:
            raise ValueError(f"{', '.join(given)} goes with the part {part}: add it to the parts")
    find_profile(profile, torch.device("cpu"))
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if "tuned" in parts:
        find_tuning(wanted.method(methods.get(paper.method)), tuning or {})
    with joined():
        study = train_cell(paper, chosen, wanted)
        study.longest, study.profile = steps, profile
        study.names, study.tuning = names, dict(tuning or {})
        options = {
            "parts": None if tuple(parts) == ("table",) else ",".join(parts), "steps": steps,
            "profile": None if profile == "exact" else profile, "methods": names and ",".join(names),
        }  # fmt: skip
        options |= {f"tuning {name}={value}": True for name, value in study.tuning.items()}
        study.command = " ".join([study.command, *_to_flags(options)])
        return [record for part in parts for record in PARTS[part](study)]


def select(
    paper: str | Paper,
    cell: str,
    root: Path | str | None = None,
    *,
    candidates: Sequence[Candidate] = CANDIDATES,
    held_out: int | None = None,
    profile: str = "exact",
    **training: Any,
) -> list[Record]:
    """Train a cell's network with candidate settings and measure each on held-out training images.

    `reproduce(…, chosen=True)` then trains with the best of them on all training images.

    Args:
        paper: A paper or its name.
        cell: The name of one of its cells.
        root: The folder with the datasets.
        candidates: The settings to try; those that lead to the same training are tried once.
        held_out: The number of training images to hold out, the same ones for all; by default 5,000, and at
            most a tenth of `limit`.
        profile: The arithmetic of the simulations.
        **training: How to train: the fields of `Training`.

    Raises:
        CollapseError: No candidate could be trained. Otherwise those that could not are left out, with a
            warning.
    """
    paper = registry.get(paper)
    chosen = paper.cell(cell)
    find_profile(profile, torch.device("cpu"))
    if held_out is None:
        limit = training.get("limit")
        held_out = _HELD_OUT if limit is None else max(1, min(_HELD_OUT, limit // 10))
    measured = []
    collapse: CollapseError | None = None
    with joined():
        for candidate in distinct(candidates, find_recipe(chosen.recipe), methods.get(paper.method)):
            wanted = Training(root=root, candidate=candidate, held_out=held_out, **training)
            try:
                study = train_cell(paper, chosen, wanted)
            except CollapseError as error:
                collapse = error
                warnings.warn(f"{candidate} is left out: {error}", stacklevel=2)
                continue
            study.profile = profile
            measured.append(measure_candidate(study, candidate))
    if collapse and not measured:
        raise collapse
    return measured


def train_cell(paper: Paper, cell: Cell, wanted: Training) -> Study:
    """Train a cell's network, or take it from its finished checkpoint, wherever that was trained."""
    measured = records.load_all(Path(wanted.folder) / paper.name)
    device = torch.device(wanted.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    candidate = choose(measured, cell) if wanted.chosen else wanted.candidate or Candidate()
    full, own = candidate.adapt(find_recipe(cell.recipe), methods.get(paper.method))
    method = wanted.method(own)
    label = _label(paper, method, candidate, wanted.chosen)
    sizes: dict[str, Any] = {"limit": wanted.limit, "held_out": wanted.held_out, "seed": wanted.seed}
    data = load_data(cell, wanted.root, device, **sizes)
    require_writable(Path(wanted.folder) / paper.name / "record.json", _RECORD_BYTES)
    recipe, cuts = _adapt(full, wanted.seed, wanted.epochs, len(data.train), device), data.cuts
    if recipe.epochs != full.epochs:
        cuts = (f"trained for {recipe.epochs} epochs instead of {full.epochs}", *cuts)
    if wanted.pretrained:
        if wanted.epochs is not None or wanted.held_out:
            raise ValueError("a network that comes with the package was trained in full, on all images")
        ann, recipe = _load_pretrained(cell, full, wanted.seed, label, device)
        about: dict[str, Any] = {}
    else:
        tags = [
            label,
            f"held-out {wanted.held_out}" if wanted.held_out else "",
            f"limit {wanted.limit}" if wanted.limit else "",
        ]
        checkpoint = Path(wanted.runs) / paper.name / f"{_name_run(cell, recipe, tags)}.safetensors"
        ann, recipe, about = _train(cell, method, data, recipe, checkpoint, device, wanted.progress)
    if recipe.batch_size != full.batch_size:
        cuts = (*cuts, f"batches of {recipe.batch_size} images instead of {full.batch_size}")
    options = {
        "seed": wanted.seed, "epochs": wanted.epochs, "limit": wanted.limit,
        "trained-for": wanted.trained_for and method.name, "study": bool(wanted.held_out),
        "candidate": candidate.text if wanted.held_out else None, "chosen": wanted.chosen,
        "pretrained": wanted.pretrained,
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
        command=" ".join(["rheobase reproduce", paper.name, cell.name, *_to_flags(options)]),
        label=label,
        shortened=cuts,
        training=about,
        progress=wanted.progress,
        measured=measured,
    )


def _label(paper: Paper, method: Method, candidate: Candidate, chosen: bool) -> str:
    """How the training differs from the paper's own, as text."""
    changes = str(candidate) if candidate.changes else ""
    if changes and chosen:
        changes = f"chosen on held-out images: {changes}"
    if method.name == paper.method:
        return changes
    if not method.own_activation:
        return ", ".join(word for word in ("trained with plain ReLU", changes) if word)
    usual = dataclasses.asdict(methods.find(method.name).example())
    settings = ", ".join(f"{n} {v}" for n, v in dataclasses.asdict(method).items() if v != usual[n])
    return ", ".join(word for word in (f"trained for {method.name}", settings, changes) if word)


def _name_run(cell: Cell, recipe: Recipe, tags: Sequence[str]) -> str:
    words = (re.sub(r"[^a-z0-9.]+", "-", tag.lower()) for tag in tags if tag)
    return "-".join([cell.name, *words, f"seed{recipe.seed}", f"epochs{recipe.epochs}"])


def _train(
    cell: Cell,
    method: Method,
    data: CellData,
    recipe: Recipe,
    checkpoint: Path,
    device: torch.device,
    progress: bool,
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    """The trained network, the recipe it was trained by, and what is kept of its training."""
    size = {} if cell.size is None else {"size": cell.size}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = models.build(cell.model, data.classes, **size).to(device)
    if done := finished_recipe(checkpoint):
        # A finished training is measured on any machine, also on one that would train it differently.
        recipe = dataclasses.replace(recipe, compile=done.compile, precision=done.precision)
    trained = train(prepare(model, method), data.train, recipe, checkpoint=checkpoint, progress=progress)
    last = trained.history[-1]
    about = {
        "clips": last.clips,
        "training_accuracy": last.accuracy,
        "training_seconds": sum(epoch.seconds for epoch in trained.history),
    }
    return trained.model, recipe, about


def _load_pretrained(
    cell: Cell, recipe: Recipe, seed: int, label: str, device: torch.device
) -> tuple[nn.Module, Recipe]:
    about = models.catalogue().get(cell.name)
    if about is None or label or (about["recipe"], about["seed"]) != (cell.recipe, seed):
        raise ValueError(
            f"no trained network comes with the package for {cell.name}, seed {seed}"
            f"{f', {label}' if label else ''}: leave pretrained out, or choose from "
            f"{', '.join(models.catalogue())} with the seed it was trained with"
        )
    recipe = dataclasses.replace(recipe, seed=seed, epochs=about["epochs"])
    return models.pretrained(cell.name).to(device), recipe


def _to_flags(options: Mapping[str, Any]) -> list[str]:
    return [
        f"--{name}" if value is True else f"--{name} {value}"
        for name, value in options.items()
        if value is not None and value is not False
    ]


def _adapt(recipe: Recipe, seed: int, epochs: int | None, images: int, device: torch.device) -> Recipe:
    """The paper's recipe as it can run here."""
    epochs = recipe.epochs if epochs is None else epochs
    return dataclasses.replace(
        recipe,
        seed=seed,
        epochs=epochs,
        warmup_epochs=min(recipe.warmup_epochs, max(epochs - 1, 0)),
        batch_size=min(recipe.batch_size, images),
        compile=recipe.compile and device.type == "cuda",  # elsewhere it costs more than it saves
        precision=recipe.precision if device.type == "cuda" else "float32",
    )
