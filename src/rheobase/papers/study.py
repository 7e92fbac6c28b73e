"""A trained network under study: the data it is measured on, and how its records are kept."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rheobase import methods
from rheobase.analysis import Evaluation, evaluate
from rheobase.io import package_versions, present_ranks, restore
from rheobase.methods import Method
from rheobase.network import SNN, Coding, Start
from rheobase.papers import records
from rheobase.papers.paper import Cell, Paper
from rheobase.papers.records import Record
from rheobase.training import Folder, Recipe, Split


@dataclass
class Study:
    """A trained network, the data to measure it on, and what its records say about their origin.

    Attributes:
        paper: The paper reproduced.
        cell: The network and dataset.
        ann: The trained network, as `prepare` made it for its method.
        ann_accuracy: Its accuracy on the test images, in percent.
        train: The training images, for methods that train further.
        calibration: Some of them, for methods that measure the network.
        test: The test images.
        recipe: How it was trained.
        trained: The method whose activations it was trained with.
        folder: The folder for records.
        commit: The commit of this package's source.
        command: The command line.
        label: How it was trained, if not as in the paper.
        shortened: What was cut compared with the paper's own run.
        training: What is known about the training besides its recipe, kept with the table's record.
        checksum: The SHA-256 of the file with its weights, kept with every record.
        longest: The largest number of steps of every measurement.
        profile: The arithmetic of the simulations.
        names: The methods to compare; by default all.
        tuning: Settings of the further training that a method's paper adds.
        progress: Whether to show progress.
        measured: The records of this paper so far.
    """

    paper: Paper
    cell: Cell
    ann: nn.Module
    ann_accuracy: float
    train: Split | Folder
    calibration: Split
    test: Split | Folder
    recipe: Recipe
    trained: Method
    folder: Path
    commit: str
    command: str
    label: str = ""
    shortened: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""
    longest: int | None = None
    profile: str = "exact"
    names: Sequence[str] | None = None
    tuning: dict[str, Any] = field(default_factory=dict)
    progress: bool = True
    measured: list[Record] = field(default_factory=list)

    @property
    def method(self) -> Method:
        """The paper's method, as the network was trained for it."""
        own = self.trained.name == self.paper.method
        return self.trained if own else methods.get(self.paper.method)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.ann.parameters()).device

    def cap(self, steps: int) -> int:
        """The given number of steps, or fewer if the study is capped."""
        return steps if self.longest is None else min(steps, self.longest)

    def find(
        self, method: Method, initial: Start, coding: Coding, steps: int, table: str | None = None
    ) -> Record | None:
        """The record of this network, converted this way and run this long, if there is one.

        Accuracies may come from a record of any table; the rest belongs to the table it was measured for.
        """
        # Modifications of a working tree cannot be told apart.
        if self.commit == "unknown" or self.commit.endswith("-modified"):
            return None
        settings = restore(records.Plain, self._settings(methods.settings_of(method)), "settings")
        network = (self.cell.model, self.cell.dataset, self.shortened, self.commit, self.profile)
        way = (method.name, str(initial), str(coding))
        for r in self.measured:
            same_network = (r.model, r.dataset, r.shortened, r.commit, r.profile) == network
            same_training = r.settings == settings and abs(r.ann_accuracy - self.ann_accuracy) < 1e-5
            same_way = (r.method, r.initial, r.coding) == way
            known = max(r.accuracy, default=0) if table is None else r.steps if r.table == table else 0
            if same_network and same_training and same_way and known >= steps:
                return r
        return None

    def evaluate(self, snn: SNN, steps: int, pooled_units: bool = False) -> Evaluation:
        """Run a converted network over the test images; several processes share them."""
        return evaluate(
            snn,
            self.test,
            steps,
            pooled_units=pooled_units,
            profile=self.profile,
            progress=self.progress,
        )

    def keep(
        self,
        snn: SNN,
        table: str,
        result: Evaluation | None,
        extra: dict[str, Any],
        seconds: float = 0,
        at: Sequence[int] | None = None,
    ) -> Record:
        """Write a result as a record; of several processes the first one does.

        Args:
            snn: The network.
            table: The table or figure it was measured for.
            result: The evaluation, if it was one.
            extra: Further results.
            seconds: Duration, if it was not an evaluation.
            at: The steps to keep accuracies of; by default all.
        """
        steps = 0 if result is None else result.steps
        shown = range(1, steps + 1) if at is None else at
        known = {"found": snn.provenance.found, "sha256": self.checksum}
        moments = {t for t in range(1, steps + 1) if t & (t - 1) == 0 or t == steps}
        record = Record(
            paper=self.paper.name,
            table=table,
            dataset=self.cell.dataset,
            model=self.cell.model,
            method=snn.provenance.method,
            initial=snn.provenance.initial,
            coding=str(snn.coding),
            seed=self.recipe.seed,
            epochs=self.recipe.epochs,
            images=len(self.test),
            ann_accuracy=self.ann_accuracy,
            accuracy={t: a for t in shown if (a := result.at(t).accuracy) is not None} if result else {},
            spikes_per_image={t: result.at(t).spikes for t in moments} if result else {},
            sop_per_image={t: result.at(t).sop for t in moments} if result else {},
            seconds=result.seconds if result else seconds,
            device=describe_device(self.device),
            versions=package_versions(),
            commit=self.commit,
            command=self.command,
            date=datetime.now(UTC).date().isoformat(),
            settings=self._settings(snn.provenance.settings),
            shortened=self.shortened,
            extra=extra | {name: value for name, value in known.items() if value},
            profile=result.profile if result else self.profile,
        )
        if present_ranks().first:
            records.write(record, self.folder)
        self.measured.append(record)
        return record

    def _settings(self, method: dict[str, Any]) -> dict[str, Any]:
        """The settings that a record keeps, with a label if the training was not the paper's."""
        found: dict[str, Any] = {"recipe": asdict(self.recipe), "method": method}
        return found | ({"label": self.label} if self.label else {})


def describe_device(device: torch.device) -> str:
    """The name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
