"""The page about a single network: accuracy, spikes and energy of a few conversions, step by step."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rheobase.evaluation import Evaluation
from rheobase.records import environment, replace_file
from rheobase.reports.figures import Curve, Panel, draw_curves
from rheobase.reports.pages import standalone, write_page
from rheobase.reports.tables import Line, Table, number


@dataclass(frozen=True)
class Demonstration:
    """What a demonstration measured.

    Attributes:
        dataset: On which data.
        ann_accuracy: Percent right before conversion.
        ann_operations: Of one image, before conversion.
        results: By the start's name.
        versions: Of what it ran on.
    """

    dataset: str
    ann_accuracy: float
    ann_operations: int
    results: dict[str, Evaluation]
    versions: dict[str, str]

    def write(self, path: Path) -> None:
        """Write it as JSON."""
        replace_file(path, json.dumps(asdict(self), indent=1, sort_keys=True) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Demonstration":
        """Read what `write` wrote."""
        found = json.loads(path.read_text())
        return cls(**{**found, "results": {k: Evaluation(**v) for k, v in found["results"].items()}})


def accuracy_page(
    title: str,
    evaluations: Mapping[str, Evaluation],
    ann_accuracy: float,
    out: Path | str,
    settings: Mapping[str, object] | None = None,
) -> Path:
    """Write one page that shows how evaluations of a converted network compare.

    Args:
        title: What was done.
        evaluations: The evaluations by the names they are shown under, the most important first.
        ann_accuracy: Percent right before conversion.
        out: The file to write.
        settings: What to tell about how it was done.

    Returns:
        The file's path.
    """
    panel = _draw(evaluations, ann_accuracy)
    first = next(iter(evaluations.values()))
    versions = ", ".join(f"{name} {version}" for name, version in environment().items())
    return write_page(
        Path(out),
        "accuracy.html.j2",
        title=title,
        ann=number(ann_accuracy),
        samples=f"{first.samples:,}",
        panels=[panel],
        tables=[_accuracies(evaluations, ann_accuracy), _costs(evaluations)],
        settings={**(settings or {}), "versions": versions},
    )


def accuracy_figure(evaluations: Mapping[str, Evaluation], ann_accuracy: float) -> str:
    """The curves of `accuracy_page` as an SVG file of their own, for a README."""
    return standalone(_draw(evaluations, ann_accuracy))


def _draw(evaluations: Mapping[str, Evaluation], ann: float) -> Panel:
    if not evaluations:
        raise ValueError("there is nothing to show: pass at least one evaluation")
    curves = [
        Curve(name, {float(t): a for t, a in enumerate(evaluation.accuracy, 1)}, i)
        for i, (name, evaluation) in enumerate(evaluations.items())
    ]
    return draw_curves("accuracy", "Accuracy after each time step", curves[::-1], ann=ann)


def _accuracies(evaluations: Mapping[str, Evaluation], ann: float) -> Table:
    moments = _moments(evaluations)
    lines = []
    for name, e in evaluations.items():
        lines.append(Line(name, tuple(number(e.accuracy[t - 1]) if t <= e.steps else "–" for t in moments)))
    header = ("Percent right", *(f"T={t}" for t in moments))
    return Table("Accuracy", header, tuple(lines), (f"Before conversion {number(ann)}.",))


def _costs(evaluations: Mapping[str, Evaluation]) -> Table:
    moments = _moments(evaluations)
    lines = []
    for name, e in evaluations.items():
        for t in (t for t in moments if t <= e.steps):
            i = t - 1
            values = (
                str(t),
                number(e.accuracy[i]),
                f"{e.spikes_per_image[i]:,.0f}",
                number(100 * e.rate[i], 1),
                f"{e.sop[i]:,.0f}",
                f"{e.mac[i]:,.0f}",
                f"{1e6 * e.joules[i]:.4g}",
            )
            lines.append(Line(name, values))
    header = ("", "Steps", "Percent right", "Spikes", "Rate, %", "SOP", "MAC", "Energy, µJ")
    convention = next(iter(evaluations.values())).convention
    note = (
        "For one image, up to that step. SOP: additions that spikes cause; MAC: multiplications by what is "
        f"not a spike, the image above all. Energy by the convention “{convention}”."
    )
    return Table("Spikes, operations and energy", header, tuple(lines), (note,))


def _moments(evaluations: Mapping[str, Evaluation]) -> list[int]:
    longest = max(e.steps for e in evaluations.values())
    return [t for t in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if t <= longest]
