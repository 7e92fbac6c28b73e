"""Runs: what was measured of one converted network, as plain data that pages are drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from rheobase.analysis import (
    Diagnosis,
    Evaluation,
    Histogram,
    Trace,
    count_operations,
    diagnose,
    evaluate,
    histogram_activations,
    sweep_starts,
    trace,
)
from rheobase.analysis import ann_joules as price
from rheobase.conversion import Coverage, inspect
from rheobase.io import batches, ensure_percent, package_versions, read_document, write_document
from rheobase.network import SNN
from rheobase.simulation import Exit

_PICTURES = 3  # more would make a page too large


@dataclass(frozen=True)
class RunRecord:
    """One converted network over one dataset.

    Attributes:
        title: What was measured.
        dataset: On which data.
        method: The conversion method.
        initial: How membranes started.
        coding: How inputs became current.
        exit: The rule by which images left early; empty where there was none.
        command: What was run.
        settings: Of the method, and whatever else is to be told, in words.
        versions: Of Python and the packages.
        ann_accuracy: Percent right before conversion, where that is known.
        ann_joules: Energy of one image before conversion, where that is known.
        evaluation: Accuracy, spikes, operations and energy after every step.
        coverage: What each call of the model became, where that is known.
        thresholds: At each site, of each channel or of all; those of dead channels are left out.
        activations: At each site, how large activations are; may be empty.
        diagnosis: Where accuracy is lost, if that was asked.
        traces: Single neurons on a few samples; may be empty.
        starts: Percent right after each step by the share of the threshold at which membranes start; may be
            empty.
    """

    title: str
    dataset: str
    method: str
    initial: str
    coding: str
    exit: str
    command: str
    settings: dict[str, str]
    versions: dict[str, str]
    ann_accuracy: float | None
    ann_joules: float | None
    evaluation: Evaluation
    coverage: Coverage | None
    thresholds: dict[str, list[float]]
    activations: dict[str, Histogram]
    diagnosis: Diagnosis | None
    traces: list[Trace]
    starts: dict[float, list[float]]

    def __post_init__(self) -> None:
        found = self.evaluation
        for name, least in (("steps", found.steps), ("samples", found.samples)):
            if least < 1:
                raise ValueError(f"evaluation.{name} must be at least 1, got {least}")
        series = {name: getattr(found, name) for name in ("accuracy", "sop", "mac", "joules")}
        series |= {f"spikes[{site!r}]": counts for site, counts in found.spikes.items()}
        series |= {"exits": found.exits} if found.exits else {}
        for name, values in series.items():
            if len(values) != found.steps:
                raise ValueError(
                    f"evaluation.{name} must have a number for each of {found.steps} steps, got {len(values)}"
                )
        if bad := [site for site in found.spikes if found.neurons.get(site, 0) < 1]:
            raise ValueError(f"evaluation.neurons must say how many {bad[0]!r} has")
        for step, value in enumerate(found.accuracy, start=1):
            if value is not None:
                ensure_percent(f"evaluation.accuracy after step {step}", value)
        if self.ann_accuracy is not None:
            ensure_percent("ann_accuracy", self.ann_accuracy)
        if self.diagnosis is not None and not self.diagnosis.sites:
            raise ValueError("diagnosis.sites must not be empty")

    def write(self, path: Path | str) -> None:
        """Write it as JSON."""
        write_document(self, path)

    @classmethod
    def read(cls, path: Path | str) -> "RunRecord":
        """Read what `write` wrote.

        Raises:
            ValueError: A field is missing, one too many, or of the wrong type.
        """
        return read_document(cls, path)


def record_evaluation(
    snn: SNN,
    evaluation: Evaluation,
    *,
    title: str,
    dataset: str = "",
    command: str = "",
    ann_accuracy: float | None = None,
    ann_joules: float | None = None,
    exit: Exit | None = None,
    settings: Mapping[str, object] | None = None,
    coverage: Coverage | None = None,
    activations: Mapping[str, Histogram] | None = None,
    diagnosis: Diagnosis | None = None,
    traces: Sequence[Trace] = (),
    starts: Mapping[float, list[float]] | None = None,
) -> RunRecord:
    """Everything a page shows of a converted network; the rest is as in `RunRecord`.

    Args:
        snn: The network, which tells its method, start, coding and thresholds.
        evaluation: What `evaluate` gave for it.
        title: What was measured.
        dataset: On which data.
        command: What was run.
        ann_accuracy: Percent right before conversion.
        ann_joules: Energy of one image before conversion.
        exit: The rule that `evaluate` was given.
        settings: What to tell beside the settings of the method.
        coverage: What `inspect` gave for the model.
        activations: What `histogram_activations` gave.
        diagnosis: What `diagnose` gave.
        traces: What `trace` gave.
        starts: What `sweep_starts` gave.
    """
    told = {**snn.provenance.settings, **snn.provenance.found, **(settings or {})}
    return RunRecord(
        title=title,
        dataset=dataset,
        method=snn.provenance.method,
        initial=snn.provenance.initial,
        coding=str(snn.coding),
        exit="" if exit is None else str(exit),
        command=command,
        settings={name: str(value) for name, value in told.items()},
        versions=package_versions(),
        ann_accuracy=ann_accuracy,
        ann_joules=ann_joules,
        evaluation=evaluation,
        coverage=coverage,
        thresholds={site: n.threshold[~n.dead].flatten().tolist() for site, n in snn.neurons.items()},
        activations=dict(activations or {}),
        diagnosis=diagnosis,
        traces=list(traces),
        starts=dict(starts or {}),
    )


def record_diagnosis(
    ann: nn.Module,
    snn: SNN,
    data: Any,
    steps: int,
    *,
    title: str,
    dataset: str = "",
    command: str = "",
    classes: Sequence[str] = (),
    settings: Mapping[str, object] | None = None,
    pictures: int = 2,
    remedies: bool = True,
    starts: bool = True,
    batch_size: int | None = None,
    progress: bool = True,
) -> RunRecord:
    """Diagnose a conversion, and collect what its page shows beside the diagnosis.

    Args:
        ann: The model that was converted.
        snn: The network that `convert` gave.
        data: Training or calibration inputs with labels, some hundred. Never test data.
        steps: T.
        title: What is diagnosed.
        dataset: On which data.
        command: What was run.
        classes: The names of the classes.
        settings: What to tell beside the settings of the method.
        pictures: On how many of the first inputs single neurons are followed, at most 3.
        remedies: Whether to try what may help.
        starts: Whether to try other constant starts.
        batch_size: Inputs at a time, where the data does not come in batches.
        progress: Whether to show progress bars.
    """
    if not 0 <= pictures <= _PICTURES:
        raise ValueError(f"a page shows at most {_PICTURES} inputs neuron by neuron, got pictures={pictures}")
    given = list(batches(data, batch_size, what="data to diagnose on"))
    first, labels = given[0]
    if labels is None:
        raise ValueError("data to diagnose on has no labels: pass (inputs, labels), or call diagnose itself")
    found = diagnose(ann, snn, given, steps, remedies=remedies, progress=progress)
    x = first[:1].to(snn.device)
    return record_evaluation(
        snn,
        evaluate(snn, given, steps, progress=progress),
        title=title,
        dataset=dataset,
        command=command,
        ann_accuracy=found.ann,
        ann_joules=price(count_operations(ann, x).flop),
        settings=settings,
        coverage=inspect(ann, x),
        activations=histogram_activations(ann, snn, given),
        diagnosis=found,
        traces=trace(snn, first[:pictures], steps, labels[:pictures], classes=classes) if pictures else (),
        starts=sweep_starts(snn, given, steps, progress=progress) if starts and not found.untried else None,
    )
