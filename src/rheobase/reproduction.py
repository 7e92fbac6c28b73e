"""Reproduction: one cell of a paper's table from the data to the records, in one call."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from rheobase import datasets, models, papers, records
from rheobase.conversion import prepare
from rheobase.datasets import Folder, Split
from rheobase.measurements import PARTS, Study
from rheobase.papers import Cell, Paper
from rheobase.recipes import Recipe, find_recipe
from rheobase.records import Record
from rheobase.training import accuracy, train

_CALIBRATION_IMAGES = 1024


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
    folder: Path | str = "results",
    runs: Path | str = "runs",
    seed: int = 0,
    epochs: int | None = None,
    limit: int | None = None,
    steps: int | None = None,
    device: str | torch.device | None = None,
    commit: str | None = None,
    progress: bool = True,
) -> list[Record]:
    """Train a cell's network as its paper does, convert it, measure it and write the records.

    The training keeps a checkpoint and goes on from it when it is called again; so does the measuring, which
    writes each record as it comes.

    Args:
        paper: A paper or its name.
        cell: The name of one of its cells.
        data_root: Where the datasets lie, as for `rheobase.datasets.load`; for ImageNet the folder that holds
            the folder `imagenet`.
        parts: What to measure: names out of `rheobase.measurements.PARTS`.
        folder: Where records go, below a folder named after the paper.
        runs: Where the checkpoint of the training goes.
        seed: Of the training and of the weights at its start.
        epochs: Fewer passes than the paper's; the records then say so and stay out of the main tables.
        limit: At most this many training and test images, with the same consequence.
        steps: At most this many steps in every measurement; tables stay empty beyond.
        device: Where to work; a GPU if there is one.
        commit: Of this package's source, where git cannot tell.
        progress: Whether to show progress on standard error.

    Raises:
        ValueError: Paper, cell, part or recipe are unknown.
        OSError: The records or the checkpoint cannot be written, or there is no such data; found out before
            anything is trained.
    """
    paper = papers.get(paper)
    chosen = paper.cell(cell)
    if unknown := [part for part in parts if part not in PARTS]:
        raise ValueError(f"unknown part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    study = train_cell(
        paper,
        chosen,
        data_root,
        folder=folder,
        runs=runs,
        seed=seed,
        epochs=epochs,
        limit=limit,
        device=device,
        commit=commit,
        progress=progress,
    )
    study.longest = steps
    return [record for part in parts for record in PARTS[part](study)]


def train_cell(
    paper: Paper,
    cell: Cell,
    data_root: Path | str | None = None,
    *,
    folder: Path | str = "results",
    runs: Path | str = "runs",
    seed: int = 0,
    epochs: int | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    commit: str | None = None,
    progress: bool = True,
) -> Study:
    """Train a cell's network, or take it from its finished checkpoint; see `reproduce` for the arguments."""
    records.ensure_writable(Path(folder) / paper.name)
    measured = records.load_all(Path(folder) / paper.name)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    full = find_recipe(cell.recipe)
    data, cuts = _load(cell, data_root, limit, device)
    recipe = _adapt(full, seed, epochs, len(data.train), device)
    if recipe.epochs != full.epochs:
        cuts = (f"trained for {recipe.epochs} epochs instead of {full.epochs}", *cuts)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        size = {} if cell.size is None else {"size": cell.size}
        model = models.build(cell.model, data.classes, **size).to(device)
    checkpoint = Path(runs) / paper.name / f"{cell.name}-seed{seed}-epochs{recipe.epochs}.safetensors"
    trained = train(
        prepare(model, paper.method), data.train, recipe, checkpoint=checkpoint, progress=progress
    )
    last = trained.history[-1]
    options = {"seed": seed, **({} if epochs is None else {"epochs": epochs})}
    options |= {} if limit is None else {"limit": limit}
    return Study(
        paper=paper,
        cell=cell,
        ann=trained.model,
        ann_accuracy=100 * accuracy(trained.model, data.test),
        calibration=data.calibration,
        test=data.test,
        recipe=recipe,
        folder=Path(folder),
        commit=records.find_commit(commit),
        command=" ".join(
            ["rheobase reproduce", paper.name, cell.name, *(f"--{k} {v}" for k, v in options.items())]
        ),
        shortened=cuts,
        training={
            "clips": last.clips,
            "training_accuracy": 100 * last.accuracy,
            "training_seconds": sum(epoch.seconds for epoch in trained.history),
        },
        progress=progress,
        measured=measured,
    )


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
    cell: Cell, root: Path | str | None, limit: int | None, device: torch.device
) -> tuple[_Data, tuple[str, ...]]:
    """The data on the device, and what was cut from it."""
    if cell.size is not None:
        if limit is not None:
            raise ValueError(f"limit= is for datasets in memory; {cell.dataset} is read on the way")
        return _open_folder(Path(root or ".") / cell.dataset, cell.size, device), ()
    data = datasets.load(cell.dataset, root)
    train, test = (
        split if limit is None else split.take(min(limit, len(split))) for split in (data.train, data.test)
    )
    cuts: tuple[str, ...] = ()
    if len(train) < len(data.train) or len(test) < len(data.test):
        cuts = (
            f"{len(train)} training and {len(test)} test images "
            f"instead of {len(data.train)} and {len(data.test)}",
        )
    calibration = train.take(min(_CALIBRATION_IMAGES, len(train)))
    found = _Data(len(data.classes), train.to(device), test.to(device), calibration.to(device))
    return found, cuts


def _open_folder(root: Path, size: int, device: torch.device) -> _Data:
    train, test = Folder(root, size, train=True), Folder(root, size, train=False)
    plain = Folder(root, size, train=True, augment=False)
    order = torch.randperm(len(plain), generator=torch.Generator().manual_seed(0))
    pixels, labels = zip(*(plain[i] for i in order[:_CALIBRATION_IMAGES].tolist()), strict=True)
    calibration = Split(torch.stack(pixels), torch.tensor(labels), plain.mean, plain.std)
    return _Data(len(train.classes), train, test, calibration.to(device))
