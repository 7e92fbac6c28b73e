"""Reproduction: one cell of a paper's table, from the data to the records."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rheobase import methods
from rheobase.io import joined
from rheobase.papers import registry
from rheobase.papers.candidates import CANDIDATES, Candidate, distinct
from rheobase.papers.cells import Training, to_flags, train_cell
from rheobase.papers.experiments import PARTS, find_tuning, measure_candidate
from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.simulation import find_profile
from rheobase.training import CollapseError, find_recipe

_HELD_OUT = 5000  # a tenth of CIFAR


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
        study.command = " ".join([study.command, *to_flags(options)])
        return [record for part in parts for record in PARTS[part](study)]


def reproduce_rows(
    paper: str | Paper, cell: str, root: Path | str | None = None, **options: Any
) -> list[Record]:
    """Measure the methods of all other rows that a paper prints for a cell, at all its columns.

    Args:
        paper: A paper or its name.
        cell: The name of one of its cells.
        root: The folder with the datasets.
        **options: As for `reproduce`; `tuning` goes to the method whose paper trains the SNN.
    """
    paper = registry.get(paper)
    found = []
    for run in plan_rows(paper, paper.cell(cell)):
        unused = () if "tuned" in run["parts"] else ("tuning",)
        found += reproduce(paper, cell, root, **{n: v for n, v in options.items() if n not in unused}, **run)
    return found


def plan_rows(paper: Paper, cell: Cell) -> list[dict[str, Any]]:
    """The calls of `reproduce` that measure all other rows of a cell.

    Methods run on the network trained for the paper's own one; those that need their own training, or whose
    paper trains the SNN itself, on one trained for them.
    """
    rows = [methods.find(row.method).example() for row in cell.rows if row.method != paper.method]
    trains_snn = {m.name for m in rows if m.tuning is not None and m.tuning.of == "snn"}
    ready = [m.name for m in rows if not m.needs_training]
    runs: list[dict[str, Any]] = [{"parts": ("methods",), "names": ready}] if ready else []
    for name in dict.fromkeys(m.name for m in rows if m.needs_training or m.name in trains_snn):
        runs.append({"parts": ("tuned",) if name in trains_snn else ("own",), "trained_for": name})
    return runs


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

    `reproduce(…, chosen="dataset")` then trains with the best reading on all training images. Several
    processes may try candidates at the same time, with the same folders.

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
            study.command += "" if profile == "exact" else f" --profile {profile}"
            measured.append(measure_candidate(study, candidate))
    if collapse and not measured:
        raise collapse
    return measured
