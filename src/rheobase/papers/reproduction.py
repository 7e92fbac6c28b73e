"""Reproduction: one cell of a paper's table from the data to the records, in one call."""

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from rheobase import methods
from rheobase.analysis import accuracy
from rheobase.conversion import prepare
from rheobase.io import find_commit, joined, present_ranks, require_writable
from rheobase.methods import Method
from rheobase.papers import records, registry
from rheobase.papers.candidates import CANDIDATES, Candidate, choose, distinct
from rheobase.papers.experiments import PARTS, find_tuning, measure_candidate
from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.papers.study import Study
from rheobase.simulation import find_profile
from rheobase.training import (
    CollapseError,
    Folder,
    Recipe,
    Split,
    datasets,
    find_recipe,
    finished_recipe,
    models,
    train,
)

_CALIBRATION_IMAGES = 1024
_RECORD_BYTES = 8 * 2**20
_HELD_OUT = 5000  # a tenth of CIFAR
# Training and test images of what is read from folders, of which nothing else tells whether they are whole.
_PUBLISHED = {"imagenet": (1_281_167, 50_000)}


class _Data(NamedTuple):
    classes: int
    train: Split | Folder
    test: Split | Folder
    calibration: Split


def reproduce(
    paper: str | Paper,
    cell: str,
    data_root: Path | str | None = None,
    *,
    parts: Sequence[str] = ("table",),
    steps: int | None = None,
    profile: str = "exact",
    names: Sequence[str] | None = None,
    tuning: Mapping[str, Any] | None = None,
    **training: Any,
) -> list[Record]:
    """Train a cell's network as its paper does, convert it, measure it and write the records.

    The training keeps a checkpoint and goes on from it when it is called again; so does the measuring, which
    writes each record as it comes. Under torchrun the processes share the training, and the first one writes.

    Args:
        paper: A paper or its name.
        cell: The name of one of its cells.
        data_root: Where the datasets lie, as for `datasets.load`; ImageNet lies in its folder `imagenet`.
        parts: What to measure: names out of `rheobase.papers.experiments.PARTS`.
        steps: At most this many steps in every measurement; tables stay empty beyond.
        profile: The arithmetic of the simulations, as in `rheobase.simulate`.
        names: The methods of the part `methods`; all unless given.
        tuning: Arguments for the further training of the part `tuned`, such as `epochs`.
        **training: How to train, as for `train_cell`.

    Raises:
        ValueError: Paper, cell, part, method, recipe or a setting of the tuning are unknown, or something is
            told that no part asked for.
        OSError: The records or the checkpoint cannot be written, or there is no such data; found out before
            anything is trained.
    """
    paper = registry.get(paper)
    chosen = paper.cell(cell)
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    for name in names or ():
        methods.find(name)
    for told, part in ((names, "methods"), (tuning, "tuned")):
        if told and part not in parts:
            raise ValueError(f"{', '.join(told)} goes with the part {part}: add it to the parts asked for")
    find_profile(profile, torch.device("cpu"))
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if "tuned" in parts:
        find_tuning(_find_method(training.get("trained_for"), methods.get(paper.method)), tuning or {})
    with joined():
        study = train_cell(paper, chosen, data_root, **training)
        study.longest, study.profile = steps, profile
        study.names, study.tuning = names, dict(tuning or {})
        told = {
            "parts": None if tuple(parts) == ("table",) else ",".join(parts), "steps": steps,
            "profile": None if profile == "exact" else profile, "methods": names and ",".join(names),
        }  # fmt: skip
        told |= {f"tuning {name}={value}": True for name, value in study.tuning.items()}
        study.command = " ".join([study.command, *_tell_options(told)])
        return [record for part in parts for record in PARTS[part](study)]


def select(
    paper: str | Paper,
    cell: str,
    data_root: Path | str | None = None,
    *,
    candidates: Sequence[Candidate] = CANDIDATES,
    held_out: int | None = None,
    profile: str = "exact",
    **training: Any,
) -> list[Record]:
    """Train a cell's network with candidate settings and measure each on images held out of the training set.

    `reproduce(…, chosen=True)` then trains with the best of them on all training images.

    Args:
        paper: A paper or its name.
        cell: The name of one of its cells.
        data_root: As for `reproduce`.
        candidates: The settings to try; those that come to the same training are tried once.
        held_out: How many training images to hold out, the same ones for all; unless given 5,000, and at most
            a tenth of `limit` where there is one.
        profile: As for `reproduce`.
        **training: How to train, as for `train_cell`.

    Raises:
        CollapseError: None could be trained; where only some could not, they are left out with a warning.
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
            try:
                study = train_cell(
                    paper, chosen, data_root, candidate=candidate, held_out=held_out, **training
                )
            except CollapseError as error:
                collapse = error
                warnings.warn(f"{candidate} is left out: {error}", stacklevel=2)
                continue
            study.profile = profile
            measured.append(measure_candidate(study, candidate))
    if collapse and not measured:
        raise collapse
    return measured


def train_cell(
    paper: Paper,
    cell: Cell,
    data_root: Path | str | None = None,
    *,
    trained_for: str | Method | None = None,
    candidate: Candidate | None = None,
    chosen: bool = False,
    held_out: int = 0,
    pretrained: bool = False,
    folder: Path | str = "results",
    runs: Path | str = "runs",
    seed: int = 0,
    epochs: int | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    commit: str | None = None,
    progress: bool = True,
) -> Study:
    """Train a cell's network, or take it from its finished checkpoint, wherever that was trained.

    Args:
        paper: The paper.
        cell: One of its cells.
        data_root: As for `reproduce`.
        trained_for: Another method than the paper's, with whose activations to train by the same recipe.
            Methods that need none of their own share one network with plain ReLU.
        candidate: Settings other than the paper's.
        chosen: Whether to take the settings that did best on held-out images, as `select` recorded them.
        held_out: Test on so many training images instead, which are then not trained on.
        pretrained: Whether to take the network that comes with the package instead of training one.
        folder: Where records go, below a folder named after the paper.
        runs: Where the checkpoint of the training goes.
        seed: Of the training and of the weights at its start.
        epochs: Fewer passes than the paper's; the records then say so and stay out of the main tables.
        limit: At most this many training and test images, with the same consequence.
        device: Where to work; a GPU if there is one.
        commit: Of this package's source, where git cannot tell.
        progress: Whether to show progress on standard error.
    """
    measured = records.load_all(Path(folder) / paper.name)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    candidate = choose(measured, cell) if chosen else candidate or Candidate()
    full, method = candidate.adapt(find_recipe(cell.recipe), methods.get(paper.method))
    method = _find_method(trained_for, method)
    label = _label(paper, method, candidate, chosen)
    data, cuts = _load(cell, data_root, limit, held_out, seed, device)
    require_writable(Path(folder) / paper.name / "record.json", _RECORD_BYTES)
    recipe = _adapt(full, seed, epochs, len(data.train), device)
    if recipe.epochs != full.epochs:
        cuts = (f"trained for {recipe.epochs} epochs instead of {full.epochs}", *cuts)
    if pretrained:
        if epochs is not None or held_out:
            raise ValueError("a network that comes with the package was trained in full, on all images")
        ann, recipe, training = _take_pretrained(cell, full, seed, label, device)
    else:
        size = {} if cell.size is None else {"size": cell.size}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = models.build(cell.model, data.classes, **size).to(device)
        tags = [label, f"held-out {held_out}" if held_out else "", f"limit {limit}" if limit else ""]
        checkpoint = Path(runs) / paper.name / f"{_name_run(cell, recipe, tags)}.safetensors"
        ann, recipe, training = _train(prepare(model, method), data.train, recipe, checkpoint, progress)
    if recipe.batch_size != full.batch_size:
        cuts = (*cuts, f"batches of {recipe.batch_size} images instead of {full.batch_size}")
    options = {
        "seed": seed, "epochs": epochs, "limit": limit, "trained-for": trained_for and method.name,
        "study": bool(held_out), "candidate": candidate.text if held_out else None, "chosen": chosen,
        "pretrained": pretrained,
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
        folder=Path(folder),
        commit=find_commit(commit),
        command=_tell_command(paper, cell, options),
        label=label,
        shortened=cuts,
        training=training,
        progress=progress,
        measured=measured,
    )


def _find_method(trained_for: str | Method | None, own: Method) -> Method:
    if trained_for is None:
        return own
    return trained_for if isinstance(trained_for, Method) else methods.find(trained_for).example()


def _label(paper: Paper, method: Method, candidate: Candidate, chosen: bool) -> str:
    """In words how the training differs from the paper's own."""
    told = str(candidate) if candidate.changes else ""
    if told and chosen:
        told = f"chosen on held-out images: {told}"
    if method.name == paper.method:
        return told
    plain = not method.own_activation
    changed = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    usual = dataclasses.asdict(methods.find(method.name).example())
    settings = ", ".join(f"{name} {value}" for name, value in changed.items() if value != usual[name])
    own = "trained with plain ReLU" if plain else f"trained for {method.name}"
    return ", ".join(word for word in (own, "" if plain else settings, told) if word)


def _name_run(cell: Cell, recipe: Recipe, tags: Sequence[str]) -> str:
    words = (re.sub(r"[^a-z0-9.]+", "-", tag.lower()) for tag in tags if tag)
    return "-".join([cell.name, *words, f"seed{recipe.seed}", f"epochs{recipe.epochs}"])


def _train(
    model: nn.Module, data: Split | Folder, recipe: Recipe, checkpoint: Path, progress: bool
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    if done := finished_recipe(checkpoint):
        # What is trained already is measured anywhere, though it would not be trained alike here.
        recipe = dataclasses.replace(recipe, compile=done.compile, precision=done.precision)
    trained = train(model, data, recipe, checkpoint=checkpoint, progress=progress)
    last = trained.history[-1]
    told = {
        "clips": last.clips,
        "training_accuracy": last.accuracy,
        "training_seconds": sum(epoch.seconds for epoch in trained.history),
    }
    return trained.model, recipe, told


def _take_pretrained(
    cell: Cell, recipe: Recipe, seed: int, label: str, device: torch.device
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    about = models.catalogue().get(cell.name)
    if about is None or label or (about["recipe"], about["seed"]) != (cell.recipe, seed):
        raise ValueError(
            f"no trained network comes with the package for {cell.name}, seed {seed}"
            f"{f', {label}' if label else ''}: leave pretrained out, or choose of "
            f"{', '.join(models.catalogue())} with the seed it was trained with"
        )
    recipe = dataclasses.replace(recipe, seed=seed, epochs=about["epochs"])
    return models.pretrained(cell.name).to(device), recipe, {}


def _tell_command(paper: Paper, cell: Cell, options: Mapping[str, Any]) -> str:
    return " ".join(["rheobase reproduce", paper.name, cell.name, *_tell_options(options)])


def _tell_options(options: Mapping[str, Any]) -> list[str]:
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


def _load(
    cell: Cell,
    root: Path | str | None,
    limit: int | None,
    held_out: int,
    seed: int,
    device: torch.device,
) -> tuple[_Data, tuple[str, ...]]:
    """The data on the device, and what was cut from it."""
    if cell.size is not None:
        if limit is not None or held_out:
            raise ValueError(
                f"{cell.dataset} is read on the way, and its images can be neither limited nor held out: "
                "leave the limit and the study out"
            )
        opened = _open_folder(datasets.find_root(root) / cell.dataset, cell.size, seed, device)
        sizes = len(opened.train), len(opened.test)
        return opened, _tell_cut(*sizes, *_PUBLISHED.get(cell.dataset, sizes))
    data = datasets.load(cell.dataset, root)
    train, test = (
        split if limit is None else split.take(min(limit, len(split))) for split in (data.train, data.test)
    )
    cuts = _tell_cut(len(train), len(test), len(data.train), len(data.test))
    if held_out:
        train, test = train.hold_out(held_out)
        cuts = (*cuts, f"{held_out} training images held out and measured on, in place of test images")
    calibration = train.take(min(_CALIBRATION_IMAGES, len(train)))
    found = _Data(len(data.classes), train.to(device), test.to(device), calibration.to(device))
    return found, cuts


def _tell_cut(train: int, test: int, all_train: int, all_test: int) -> tuple[str, ...]:
    if (train, test) == (all_train, all_test):
        return ()
    return (f"{train} training and {test} test images instead of {all_train} and {all_test}",)


def _open_folder(root: Path, size: int, seed: int, device: torch.device) -> _Data:
    workers = (os.cpu_count() or 1) // present_ranks().count
    train, test = (Folder(root, size, train=half, seed=seed, workers=workers) for half in (True, False))
    plain = Folder(root, size, train=True, augment=False)
    order = plain.shuffle(torch.Generator("cpu").manual_seed(0))
    pixels, labels = zip(*(plain[i] for i in order[:_CALIBRATION_IMAGES]), strict=True)
    calibration = Split(torch.stack(pixels), torch.tensor(labels, device="cpu"), plain.mean, plain.std)
    return _Data(len(train.classes), train, test, calibration.to(device))
