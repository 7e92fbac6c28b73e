"""Records of runs: what was measured of one converted network, as plain data that pages are drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from rheobase.io import Data, batches, ensure_percent, package_versions, read_document, write_document
from rheobase.network import SNN
from rheobase.simulation import Exit

VERSION = 1
_PICTURES = 3  # more would make a page too large


@dataclass(frozen=True)
class RunRecord:
    """One converted network over one dataset.

    Attributes:
        title: The title of the run.
        method: The conversion method.
        initial: The initial potential.
        coding: The input coding.
        evaluation: Accuracy, spikes, operations and energy after every step.
        dataset: The data.
        exit: The exit rule; empty if there was none.
        command: The command line, if any.
        settings: The method's settings and others, as text.
        versions: Versions of Python and the packages.
        ann_accuracy: Accuracy of the ANN in percent, if known.
        ann_joules: Energy per image of the ANN, if known.
        coverage: What each call of the model became, if known.
        thresholds: At each site, one per channel or one for all, without those of dead channels.
        activations: Histograms of the activations at each site.
        diagnosis: Where accuracy is lost, if that was asked for.
        traces: Single neurons on a few samples.
        starts: Accuracy after each step, by the share of the threshold at which membranes start.
        version: Version of the file format.
    """

    title: str
    method: str
    initial: str
    coding: str
    evaluation: Evaluation
    dataset: str = ""
    exit: str = ""
    command: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    ann_accuracy: float | None = None
    ann_joules: float | None = None
    coverage: Coverage | None = None
    thresholds: dict[str, list[float]] = field(default_factory=dict)
    activations: dict[str, Histogram] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    traces: list[Trace] = field(default_factory=list)
    starts: dict[float, list[float | None]] = field(default_factory=dict)
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"the record has version {self.version}; this package reads version {VERSION}")
        found = self.evaluation
        if found.metric != "accuracy" or found.scores:  # of a function with that name
            raise ValueError(
                f"records and their pages show accuracy, and this evaluation measured {found.metric}; "
                "use its own plot() and to_pandas()"
            )
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
            raise ValueError(f"evaluation.neurons must give the number of neurons of {bad[0]!r}")
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
        """Read what `write` wrote, with this version or an earlier one.

        Raises:
            ValueError: A required field is missing, or one is unknown or has the wrong type.
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
    exit_rule: Exit | None = None,
    settings: Mapping[str, object] | None = None,
    coverage: Coverage | None = None,
    activations: Mapping[str, Histogram] | None = None,
) -> RunRecord:
    """The record of an evaluation; method, start, coding and thresholds are taken from the network.

    Args:
        snn: The network.
        evaluation: What `evaluate` returned for it.
        title: The title of the run.
        dataset: The data.
        command: The command line, if any.
        ann_accuracy: Accuracy of the ANN in percent.
        ann_joules: Energy per image of the ANN.
        exit_rule: The rule given to `evaluate`.
        settings: Further settings to show.
        coverage: What `inspect` returned for the model.
        activations: What `histogram_activations` returned.
    """
    shown = {**snn.provenance.settings, **snn.provenance.found, **(settings or {})}
    return RunRecord(
        title=title,
        method=snn.provenance.title,
        initial=snn.provenance.initial,
        coding=str(snn.coding),
        evaluation=evaluation,
        dataset=dataset,
        exit="" if exit_rule is None else str(exit_rule),
        command=command,
        settings={name: str(value) for name, value in shown.items()},
        versions=package_versions(),
        ann_accuracy=ann_accuracy,
        ann_joules=ann_joules,
        coverage=coverage,
        thresholds={site: n.threshold[~n.dead].flatten().tolist() for site, n in snn.neurons.items()},
        activations=dict(activations or {}),
    )


def record_diagnosis(
    model: nn.Module,
    snn: SNN,
    data: Data,
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
    """Diagnose a conversion, and collect what its page shows in addition.

    Args:
        model: The ANN.
        snn: What `convert` made of it.
        data: Training or calibration inputs with labels, a few hundred. Never test data.
        steps: T.
        title: The title of the run.
        dataset: The name of the data.
        command: The command line, if any.
        classes: The names of the classes.
        settings: Further settings to show.
        pictures: The number of inputs on which single neurons are shown, at most 3.
        remedies: Whether to try remedies.
        starts: Whether to try other constant starts.
        batch_size: Inputs per batch, if the data does not come in batches.
        progress: Whether to show progress bars.
    """
    if not 0 <= pictures <= _PICTURES:
        raise ValueError(f"a page shows at most {_PICTURES} inputs neuron by neuron, got pictures={pictures}")
    given = list(batches(data, batch_size, what="data to diagnose on"))
    first, labels = given[0]
    if labels is None:
        raise ValueError("data to diagnose on has no labels: pass (inputs, labels), or call diagnose itself")
    found = diagnose(model, snn, given, steps, remedies=remedies, progress=progress)
    x = first[:1].to(snn.device)
    record = record_evaluation(
        snn,
        evaluate(snn, given, steps, progress=progress),
        title=title,
        dataset=dataset,
        command=command,
        ann_accuracy=found.ann,
        ann_joules=price(count_operations(model, x).flop),
        settings=settings,
        coverage=inspect(model, x),
        activations=histogram_activations(model, snn, given),
    )
    followed = trace(snn, first[:pictures], steps, labels[:pictures], classes=classes) if pictures else []
    swept = sweep_starts(snn, given, steps, progress=progress) if starts and not found.untried else {}
    return replace(record, diagnosis=found, traces=followed, starts=swept)
