"""Measurements on one trained network: everything a paper's tables and figures need.

Each function converts the network in the ways that its table or figure compares, runs them over the test
images and gives one record for each, written as soon as it is measured. What the same commit has measured on
the same network already is not measured again.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import methods, records
from rheobase.coding import Coding, ConstantCurrent
from rheobase.conversion import convert
from rheobase.datasets import Folder, Split, batches
from rheobase.energy import ann_joules, count_operations, snn_joules
from rheobase.evaluation import Evaluation, evaluate
from rheobase.membrane import Constant, Gaussian, Half, Initial, Uniform, Zero
from rheobase.methods import Method
from rheobase.papers import Cell, Paper
from rheobase.recipes import Recipe
from rheobase.records import Record
from rheobase.simulation import simulate
from rheobase.snn import SNN

# A GPU is idle with less; a CPU's caches overflow with more.
_BATCH = {"cuda": 512}
_MEMORY = {"cuda": 4 * 2**30}

_STARTS_STEPS = 256
_CONSTANTS_STEPS = 128
_DELAYS_STEPS = 64
_ENERGY_STEPS = 32
_METHODS_AT = (8, 16, 32, 64, 128)


@dataclass
class Study:
    """A trained network, what to measure it on, and what its records say about where they come from.

    Attributes:
        paper: The paper reproduced.
        cell: The network and dataset.
        ann: The trained network, as its method's `prepare` made it.
        ann_accuracy: Its percentage right on the test images.
        calibration: Some training images, for methods that measure the network.
        test: The test images.
        recipe: How it was trained.
        shortened: What was cut against the paper's own run.
        folder: Where records go.
        commit: Of this package's source.
        command: What was run.
        training: What is known of the training beside its recipe, kept with the table's record.
        longest: A cap on the steps of every measurement.
        progress: Whether to show progress.
        measured: The records of this paper so far.
    """

    paper: Paper
    cell: Cell
    ann: nn.Module
    ann_accuracy: float
    calibration: Split
    test: Split | Folder
    recipe: Recipe
    folder: Path
    commit: str
    command: str
    shortened: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)
    longest: int | None = None
    progress: bool = True
    measured: list[Record] = field(default_factory=list)

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return next(self.ann.parameters()).device

    @property
    def batch_size(self) -> int:
        """Images simulated together; no result depends on it, on a GPU but for rounding."""
        return _BATCH.get(self.device.type, 128)

    @property
    def memory(self) -> int | None:
        """Bytes a simulation may hold at a time; no result depends on it, as above."""
        return _MEMORY.get(self.device.type)

    def cap(self, steps: int) -> int:
        """So many steps, or fewer where the study is capped."""
        return steps if self.longest is None else min(steps, self.longest)

    def find(self, method: Method, initial: Initial, coding: Coding, steps: int) -> Record | None:
        """A record of this very network, converted this way and run that long, if there is one."""
        # A modified working tree has no name that could tell one modification from another.
        if self.commit == "unknown" or self.commit.endswith("-modified"):
            return None
        settings = records.plain("settings", self._settings(asdict(method)))
        network = (self.cell.model, self.cell.dataset, self.shortened, self.commit)
        way = (method.name, str(initial), str(coding))
        for r in self.measured:
            same_network = (r.model, r.dataset, r.shortened, r.commit) == network
            same_training = r.settings == settings and abs(r.ann_accuracy - self.ann_accuracy) < 1e-5
            same_way = (r.method, r.initial, r.coding) == way
            if same_network and same_training and same_way and max(r.accuracy, default=0) >= steps:
                return r
        return None

    def evaluate(self, snn: SNN, steps: int, pooled_units: bool = False) -> Evaluation:
        """Run a converted network over the test images."""
        return evaluate(
            snn,
            self.test,
            steps,
            batch_size=self.batch_size,
            memory=self.memory,
            pooled_units=pooled_units,
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
        """Write a result as a record.

        Args:
            snn: What was measured.
            table: The table or figure it was measured for.
            result: The evaluation, if it was one.
            extra: What it gave beside.
            seconds: How long it took, where it was not an evaluation.
            at: The steps to keep accuracies of: all unless given.
        """
        steps = 0 if result is None else result.steps
        shown = range(1, steps + 1) if at is None else at
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
            accuracy={t: result.accuracy[t - 1] for t in shown} if result else {},
            spikes_per_image={t: result.spikes_per_image[t - 1] for t in moments} if result else {},
            sop_per_image={t: result.sop[t - 1] for t in moments} if result else {},
            seconds=result.seconds if result else seconds,
            device=describe_device(self.device),
            versions=records.environment(),
            commit=self.commit,
            command=self.command,
            date=datetime.now(UTC).date().isoformat(),
            settings=self._settings(snn.provenance.settings),
            shortened=self.shortened,
            extra=extra,
        )
        records.write(record, self.folder)
        self.measured.append(record)
        return record

    def _settings(self, method: dict[str, Any]) -> dict[str, Any]:
        return {"recipe": asdict(self.recipe), "method": method}


def measure_table(study: Study) -> Iterator[Record]:
    """The paper's own line: its method, its start, all its columns."""
    yield _measure(study, study.cell.table, study.paper.method, max(study.paper.steps), extra=study.training)


def measure_starts(study: Study) -> Iterator[Record]:
    """Zero, half, uniform and Gaussian starts over time, with both readings of the Gaussian."""
    for initial in (Half(), Zero(), Uniform(), Gaussian(), Gaussian(0, 1)):
        yield _measure(study, "figure 2", study.paper.method, _STARTS_STEPS, initial)


def measure_constants(study: Study) -> Iterator[Record]:
    """Constant starts from zero to the threshold; their first 75 steps are the appendix's heat map."""
    for tenths in range(11):
        yield _measure(study, "figure 3", study.paper.method, _CONSTANTS_STEPS, Constant(tenths / 10))


def measure_delays(study: Study) -> Iterator[Record]:
    """When each layer fires first, from zero and from half the threshold.

    The extra has, for the sites in order: `first_spike`, the step at which the first neuron fires, a mean
    over images in which one that stays silent counts as one step after the last; `silent`, the share of
    images that stay so; and `fired`, the share of neurons that have fired by each step.
    """
    steps = study.cap(_DELAYS_STEPS)
    for initial in (Zero(), Half()):
        snn = convert(study.ann, study.paper.method, study.calibration, initial=initial)
        yield _measure_delay(study, snn, steps)


def measure_energy(study: Study) -> Iterator[Record]:
    """Operations and joules of both networks, with synaptic operations counted in both ways."""
    steps = study.cap(_ENERGY_STEPS)
    operations = count_operations(study.ann, next(study.calibration.batches(1))[0])
    snn = convert(study.ann, study.paper.method, study.calibration)
    by_spikes, by_pooled = (study.evaluate(snn, steps, pooled_units=pooled) for pooled in (False, True))
    extra = {
        "steps": steps,
        "flop": operations.flop,
        "mac": operations.mac,
        "ann_joules": ann_joules(operations.flop),
        "snn_mac": by_spikes.mac[-1],
        "sop": {"spikes": by_spikes.sop[-1], "pooled": by_pooled.sop[-1]},
        "snn_joules": {"spikes": snn_joules(by_spikes.sop[-1]), "pooled": snn_joules(by_pooled.sop[-1])},
    }
    yield study.keep(snn, "energy", by_spikes, extra)


def measure_methods(study: Study) -> Iterator[Record]:
    """Every method of this package on the same trained network, from zero and from half the threshold.

    Inputs are constant currents for all, so that only method and start differ. A method that converts for a
    given number of steps is converted anew for each of several, and read out there only. A method that
    cannot take this network, as one that needs a training of its own, is left out with a warning.
    """
    for name in methods.names():
        try:
            for method, steps, at in _variants(name, study.cap(max(_METHODS_AT))):
                starts = {str(start): start for start in (Zero(), Half(), method.initial)}
                for initial in starts.values():
                    yield _measure(study, "methods", method, steps, initial, ConstantCurrent(), at=at)
        except (TypeError, ValueError, RuntimeError) as error:
            warnings.warn(f"{name} is left out on this network: {error}", stacklevel=2)


PARTS: dict[str, Callable[[Study], Iterator[Record]]] = {
    "table": measure_table,
    "starts": measure_starts,
    "constants": measure_constants,
    "delays": measure_delays,
    "energy": measure_energy,
    "methods": measure_methods,
}
"""What can be measured, by name."""


def describe_device(device: torch.device) -> str:
    """The device in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _measure(
    study: Study,
    table: str,
    method: str | Method,
    steps: int,
    initial: Initial | None = None,
    coding: Coding | None = None,
    *,
    at: Sequence[int] | None = None,
    extra: dict[str, Any] | None = None,
) -> Record:
    steps, chosen = study.cap(steps), methods.get(method)
    initial, coding = initial or chosen.initial, coding or chosen.coding
    if found := study.find(chosen, initial, coding, steps):
        return found
    snn = convert(study.ann, chosen, study.calibration, initial=initial, coding=coding)
    return study.keep(snn, table, study.evaluate(snn, steps), extra or {}, at=at)


def _variants(name: str, longest: int) -> list[tuple[Method, int, list[int] | None]]:
    """A method as it is to be measured: how many steps, and which of them to read out if not all."""
    required = [f.name for f in fields(methods.find(name)) if f.default is f.default_factory is MISSING]
    if required != ["steps"]:
        return [(methods.get(name), longest, None)]
    return [(methods.get(name, steps=t), t, [t]) for t in _METHODS_AT if t <= longest]


def _measure_delay(study: Study, snn: SNN, steps: int) -> Record:
    began, samples = perf_counter(), 0
    firing = _Firing(snn.sites, steps, study.device)
    for x, _ in batches(study.test, study.batch_size, what="test data"):
        x = x.to(study.device)
        simulate(snn, x, steps, at=[steps], memory=study.memory, first_sample=samples, probe=firing.see)
        samples += len(x)
    extra = {
        "sites": list(snn.sites),
        # An image's first spike comes one step after the last at whose end nothing had fired.
        "first_spike": [1 + (firing.quiet[site].sum() / samples).item() for site in snn.sites],
        "silent": [(firing.quiet[site][-1] / samples).item() for site in snn.sites],
        "fired": [(firing.fired[site] / (samples * firing.neurons[site])).tolist() for site in snn.sites],
    }
    return study.keep(snn, "figure 1", None, extra, perf_counter() - began)


class _Firing:
    """A probe: after each step, how many neurons have fired so far and in how many images none has.

    Shape letters: T steps of a chunk, B batch, N neurons of a site.
    """

    def __init__(self, sites: list[str], steps: int, device: torch.device) -> None:
        self.fired = {site: torch.zeros(steps, dtype=torch.float64, device=device) for site in sites}
        self.quiet = {site: torch.zeros(steps, dtype=torch.float64, device=device) for site in sites}
        self.neurons: dict[str, int] = {}
        self._has: dict[str, Tensor] = {}

    def see(self, site: str, spikes_TB: Tensor, before: int) -> None:
        """Take in a chunk of a site's spikes."""
        active_TBN = (spikes_TB != 0).flatten(2)
        if before == 0:  # other images
            self._has[site] = torch.zeros_like(active_TBN[0])
            self.neurons[site] = active_TBN.shape[2]
        has_BN = self._has[site]
        for t, active_BN in enumerate(active_TBN, before):
            has_BN |= active_BN
            self.fired[site][t] += has_BN.sum()
            self.quiet[site][t] += (~has_BN.any(1)).sum()
