"""The page about a single network: accuracy, spikes and energy of a few conversions, step by step."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rheobase.analysis import Evaluation
from rheobase.io import package_versions, read_document, write_document
from rheobase.reports.evaluations import accuracy_table, cost_table, draw_accuracy
from rheobase.reports.pages import standalone, write_page
from rheobase.reports.tables import number


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
        write_document(self, path)

    @classmethod
    def read(cls, path: Path) -> "Demonstration":
        """Read what `write` wrote."""
        return read_document(cls, path)


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
    panel = draw_accuracy(evaluations, ann_accuracy)
    first = next(iter(evaluations.values()))
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    return write_page(
        Path(out),
        "accuracy.html.j2",
        title=title,
        ann=number(ann_accuracy),
        samples=f"{first.samples:,}",
        panels=[panel],
        tables=[accuracy_table(evaluations, ann_accuracy), cost_table(evaluations)],
        settings={**(settings or {}), "versions": versions},
    )


def accuracy_figure(evaluations: Mapping[str, Evaluation], ann_accuracy: float) -> str:
    """The curves of `accuracy_page` as an SVG file of their own, for a README."""
    return standalone(draw_accuracy(evaluations, ann_accuracy))
