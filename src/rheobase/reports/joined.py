"""Several runs on one page, whichever command wrote them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rheobase.analysis import Comparison
from rheobase.io import build_document, ensure_percent, read_fields
from rheobase.reports.comparison_page import comparison_page
from rheobase.reports.curves import Axis, Curve, draw_curves
from rheobase.reports.drawing import Panel
from rheobase.reports.evaluations import accuracy_by_energy, choose_steps
from rheobase.reports.pages import Section, write_page
from rheobase.reports.run_page import diagnosis_page, evaluation_page
from rheobase.reports.run_record import RunRecord
from rheobase.reports.run_sections import settings_of
from rheobase.reports.tables import DASH, Line, Table, microjoules, number

_COLOURED = 6
_NEAR = 1.0  # points
_CHOICE = (
    f"In colour are {_COLOURED} of them: those within {_NEAR:g} point of the highest accuracy, beginning "
    "with the least energy, then the next best."
)
# What only one kind of file has.
_KINDS: dict[str, type[RunRecord] | type[Comparison]] = {"evaluation": RunRecord, "rows": Comparison}


@dataclass(frozen=True)
class _Entry:
    """One conversion: a whole run, or a line of a comparison.

    Attributes:
        names: What it can be called, from short to certainly different.
        data: On what it was measured.
        ann: Percent right before conversion.
        accuracy: Percent right by steps.
        energy: Percent right by the µJ of an image.
        costs: Steps, mean steps, spikes, operations and joules of an image at the end.
        findings: What a diagnosis found.
        settings: How it was done, where that is known.
    """

    names: tuple[str, ...]
    data: str
    ann: float | None
    accuracy: Mapping[int, float]
    energy: Mapping[float, float]
    costs: tuple[int, float, float, float, float]
    findings: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> tuple[float, int]:
        """The highest accuracy, and the steps after which it is there first."""
        top = max(self.accuracy.values())
        return top, min(t for t, accuracy in self.accuracy.items() if accuracy == top)


def page_of(files: Sequence[Path | str], out: Path | str) -> Path:
    """Write the page of one file with results, or one page that joins several.

    Args:
        files: What `RunRecord.write` and `Comparison.write` wrote.
        out: The file to write.

    Returns:
        The file's path.

    Raises:
        ValueError: There are no files, or one is of no known kind, lacks a field or has a wrong one.
    """
    found = [_read(path) for path in files]
    if len(found) != 1:
        return joined_page(found, out)
    (record,) = found
    if isinstance(record, Comparison):
        return comparison_page(record, out)
    return evaluation_page(record, out) if record.diagnosis is None else diagnosis_page(record, out)


def joined_page(
    records: Sequence[RunRecord | Comparison], out: Path | str, title: str = "Runs side by side"
) -> Path:
    """Write one page that shows how several runs compare.

    Args:
        records: Runs and comparisons, in the order to show them in.
        out: The file to write.
        title: What the page is called.

    Returns:
        The file's path.

    Raises:
        ValueError: There is nothing to show.
    """
    entries = [entry for record in records for entry in _entries(record)]
    if not entries:
        raise ValueError("there is nothing to join: pass at least one run with results")
    labelled = dict(zip(_labels(entries), entries, strict=True))
    ranked = _rank(labelled)
    coloured = {label: i for i, label in enumerate(ranked[:_COLOURED])}
    texts = (_CHOICE,) if len(ranked) > _COLOURED else ()
    sections = [
        Section("Accuracy and energy", texts, _panels(labelled, coloured), _tables(labelled)),
        _findings(labelled),
        _settings(labelled),
    ]
    return write_page(
        Path(out),
        "run.html.j2",
        title=title,
        lead=_tell(labelled),
        sections=[section for section in sections if section is not None],
        settings=_shared_settings(labelled),
    )


def _read(path: Path | str) -> RunRecord | Comparison:
    content = read_fields(path)
    for name, kind in _KINDS.items():
        if name in content:
            found = build_document(kind, content, path)
            if isinstance(found, Comparison):
                _ensure_percents(found, path)
            return found
    raise ValueError(
        f"{path} is neither the record of a run (it has no field 'evaluation') nor a comparison (no field "
        "'rows'); records of a paper are drawn from their folder"
    )


def _ensure_percents(found: Comparison, path: Path | str) -> None:
    """A comparison is plain data: what it says is checked where it comes from a file."""
    ensure_percent(f"{path}: ann_accuracy", found.ann_accuracy)
    for row in found.rows:
        for t, accuracy in row.accuracy.items():
            ensure_percent(f"{path}: accuracy of {row.method}, {row.initial}, after {t} steps", accuracy)


def _entries(record: RunRecord | Comparison) -> list[_Entry]:
    if isinstance(record, RunRecord):
        return [_entry_of_run(record)]
    return [
        _Entry(
            names=(f"{row.method}, {row.initial}", f"{row.method}, {row.initial}, {record.title}"),
            data=f"{record.title}, {record.samples:,} images",
            ann=record.ann_accuracy,
            accuracy=row.accuracy,
            energy={1e6 * row.joules: row.accuracy[max(row.accuracy)]} if row.joules else {},
            costs=(row.steps, row.steps, row.spikes, row.sop, row.joules),
        )
        for row in record.rows
        if row.accuracy
    ]


def _entry_of_run(record: RunRecord) -> _Entry:
    found = record.evaluation
    end = found.at(found.steps)
    leaving = ", leaving early" if record.exit else ""
    name = f"{record.method}, {record.initial}{leaving}"
    return _Entry(
        names=(name, f"{name}, {record.title}", f"{name}, {record.title}, {found.steps} steps"),
        data=f"{record.dataset or DASH}, {found.samples:,} images",
        ann=record.ann_accuracy,
        accuracy={t: a for t, a in enumerate(found.accuracy, 1) if a is not None},
        energy=accuracy_by_energy(found),
        costs=(found.steps, end.latency, end.spikes, end.sop, end.joules),
        findings=() if record.diagnosis is None else tuple(map(str, record.diagnosis.findings)),
        settings=settings_of(record),
    )


def _labels(entries: Sequence[_Entry]) -> list[str]:
    """For each entry the shortest name that is no other's; numbered where none is."""
    counts = Counter(name for entry in entries for name in set(entry.names))
    names = [next((n for n in entry.names if counts[n] == 1), entry.names[-1]) for entry in entries]
    if len(set(names)) == len(names):
        return names
    return [f"{i}. {name}" for i, name in enumerate(names, 1)]


def _rank(labelled: Mapping[str, _Entry]) -> list[str]:
    """Those within a point of the highest accuracy first, by their energy; the others by accuracy."""
    top = max(entry.best[0] for entry in labelled.values())

    def key(label: str) -> tuple[bool, float]:
        accuracy, joules = labelled[label].best[0], labelled[label].costs[-1]
        near = accuracy >= top - _NEAR
        return not near, joules if near else -accuracy

    return sorted(labelled, key=key)


def _tell(labelled: Mapping[str, _Entry]) -> str:
    best = max(labelled, key=lambda label: labelled[label].best[0])
    top, steps = labelled[best].best
    others = sum(entry.best[0] == top for entry in labelled.values()) - 1
    also = f" (and {others} more)" if others else ""
    told = (
        f"{len(labelled)} conversions; the highest accuracy is {number(top)} %, of {best}, after {steps} "
        f"steps{also}."
    )
    if len({entry.data for entry in labelled.values()}) > 1:
        told += " They were not all measured on the same data: see the table before comparing them."
    return told


def _panels(labelled: Mapping[str, _Entry], coloured: Mapping[str, int]) -> tuple[Panel, ...]:
    anns = {entry.ann for entry in labelled.values()}
    ann = anns.pop() if len(anns) == 1 else None
    ways: dict[str, tuple[str, Axis, Callable[[_Entry], Mapping[float, float]]]] = {
        "accuracy": (
            "Accuracy after each time step",
            Axis(),
            lambda entry: {float(t): a for t, a in entry.accuracy.items()},
        ),
        "energy": (
            "Accuracy over energy",
            Axis("energy of an image, µJ", scale="tenfold"),
            lambda entry: entry.energy,
        ),
    }
    panels = []
    for name, (title, axis, points_of) in ways.items():
        curves = []
        for label, entry in labelled.items():
            points, colour = points_of(entry), coloured.get(label)
            key = None if label in coloured else ""
            if points:
                curves.append(Curve(label, points, colour, marked=len(points) == 1, key=key))
        curves.sort(key=lambda curve: -1 if curve.colour is None else _COLOURED - curve.colour)
        if curves:
            panels.append(draw_curves(name, title, curves, ann=ann, axis=axis))
    return tuple(panels)


def _tables(labelled: Mapping[str, _Entry]) -> tuple[Table, ...]:
    reached = {t for entry in labelled.values() for t in entry.accuracy}
    moments = [t for t in choose_steps(max(reached)) if t in reached]
    accuracy, costs = [], []
    for label, entry in labelled.items():
        values = (number(entry.accuracy.get(t)) for t in moments)
        accuracy.append(Line(label, (number(entry.ann), *values, entry.data)))
        steps, latency, spikes, sop, joules = entry.costs
        last = entry.accuracy[max(entry.accuracy)]
        shown = (str(steps), f"{latency:.1f}", number(last), f"{spikes:,.0f}")
        costs.append(Line(label, (*shown, f"{sop:,.0f}", microjoules(joules))))
    header = ("Percent right", "ANN", *(f"T={t}" for t in moments), "Measured on")
    cost_header = ("At the end", "Steps", "Mean steps", "Percent right", "Spikes", "SOP", "Energy, µJ")
    return (
        Table("Accuracy", header, tuple(accuracy)),
        Table("Spikes, operations and energy of an image", cost_header, tuple(costs)),
    )


def _findings(labelled: Mapping[str, _Entry]) -> Section | None:
    points = [f"{label}: {text}" for label, entry in labelled.items() for text in entry.findings]
    return Section("Findings", points=tuple(points)) if points else None


def _settings(labelled: Mapping[str, _Entry]) -> Section | None:
    """In what runs differ, a column for each; comparisons have no settings of their own."""
    told = {label: entry.settings for label, entry in labelled.items() if entry.settings}
    lines = []
    for name in dict.fromkeys(name for settings in told.values() for name in settings):
        values = tuple(settings.get(name, DASH) for settings in told.values())
        if len(set(values)) > 1:
            lines.append(Line(name, values))
    if not lines:
        return None
    table = Table("In what they differ", ("", *told), tuple(lines))
    return Section("Runs", tables=(table,), words=True)


def _shared_settings(labelled: Mapping[str, _Entry]) -> dict[str, str]:
    """What all runs were done with."""
    told = [entry.settings for entry in labelled.values() if entry.settings]
    first = told[0] if told else {}
    return {name: value for name, value in first.items() if all(s.get(name) == value for s in told)}
