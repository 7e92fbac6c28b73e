"""Pages that compare conversions: many methods on one network, or several runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rheobase.analysis import Comparison, Row
from rheobase.io import build_document, ensure_percent, read_fields
from rheobase.reports.curves import Axis, Curve, draw_curves, draw_gains
from rheobase.reports.diagnosis_page import diagnosis_page
from rheobase.reports.drawing import Panel
from rheobase.reports.pages import Section, write_page
from rheobase.reports.run_page import (
    ENERGY_AXIS,
    accuracy_by_energy,
    choose_steps,
    evaluation_page,
    settings_of,
)
from rheobase.reports.run_record import RunRecord
from rheobase.reports.tables import DASH, Line, Table, microjoules, number

_BOTH = ("zero", "half")
_REACH = (
    "Latency: steps to the answer of the longest run, with the windows of all layers; in the sum code until "
    "every image is silent; in parentheses with one step of delay per layer. Lines: wires of a neuron."
)
_REACHED = ("Neurons", "Latency", "Lines")
_COLOURED = 6
_NEAR = 1.0  # points
_CHOICE = (
    f"{_COLOURED} of them are in colour: those within {_NEAR:g} point of the highest accuracy, least energy "
    "first, then the next best."
)


def page_of(files: Sequence[Path | str], out: Path | str) -> Path:
    """Write the page of one file with results, or one page that compares several.

    Args:
        files: Files written by `RunRecord.write` and `Comparison.write`.
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


def _read(path: Path | str) -> RunRecord | Comparison:
    content = read_fields(path)
    if "evaluation" in content:
        return build_document(RunRecord, content, path)
    if "rows" not in content:
        raise ValueError(
            f"{path} is neither the record of a run (no field 'evaluation') nor a comparison (no field "
            "'rows'); for records of a paper, give their folder"
        )
    found = build_document(Comparison, content, path)
    ensure_percent(f"{path}: ann_accuracy", found.ann_accuracy)
    for row in found.rows:
        for t, accuracy in row.accuracy.items():
            ensure_percent(f"{path}: accuracy of {row.method}, {row.initial}, after {t} steps", accuracy)
    return found


def comparison_page(comparison: Comparison, out: Path | str) -> Path:
    """Write one page with a comparison's table, and the gain of the half start at each number of steps."""
    if not any(row.steps for row in comparison.rows):
        raise ValueError("nothing to show: no method could be measured")
    panels, texts = _draw_gains(comparison)
    sections = [
        Section("Methods", texts, panels[:1], (comparison_table(comparison),)),
        *([Section("After more steps", panels=panels[1:], folded=True)] if panels[1:] else []),
    ]
    return write_page(
        Path(out),
        "run.html.j2",
        title=comparison.title,
        lead="One network, converted by every method with every start.",
        facts={
            "accuracy of the ANN": f"{number(comparison.ann_accuracy)} %",
            "methods": str(len({row.method for row in comparison.rows if row.steps})),
            "images": f"{comparison.samples:,}",
        },
        sections=sections,
        settings={
            "duration": f"{comparison.seconds:.0f} s",
            "versions": ", ".join(f"{n} {v}" for n, v in comparison.versions.items()),
            **({"command": comparison.command} if comparison.command else {}),
        },
    )


def comparison_table(comparison: Comparison) -> Table:
    """Accuracy and cost of every row; those that were not measured are named below."""
    lines = []
    for row in comparison.rows:
        if row.steps:
            accuracy = (number(row.accuracy.get(t), 1) for t in comparison.steps)
            costs = (f"{row.spikes:,.0f}", f"{row.sop:,.0f}", microjoules(row.joules))
            lines.append(Line(row.method, (row.initial, *accuracy, *costs, *row.reach)))
    columns = (*(f"T={t}" for t in comparison.steps), "Spikes", "SOP", "Energy, µJ", *_REACHED)
    note = "Spikes, synaptic operations (SOP) and energy: per image, over the whole run."
    notes = (*comparison.remarks, *comparison.silences, note, _REACH)
    return Table("Accuracy, %", ("Method", "Start", *columns), tuple(lines), notes)


def gains_table(comparison: Comparison) -> Table:
    """A short table: one line per method with its accuracies from the zero and the half start.

    Other starts have lines of their own, and methods with equal results share one.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, rows in _by_method(comparison).items():
        cells = (" → ".join(number(row.accuracy.get(t), 1) for row in rows) for t in comparison.steps)
        texts = (DASH if set(cell.split(" → ")) == {DASH} else cell for cell in cells)
        alike.setdefault((*texts, microjoules(rows[-1].joules), *rows[-1].reach[1:]), []).append(name)
    lines = tuple(Line(", ".join(names), values) for values, names in alike.items())
    steps = (f"T={t}" for t in comparison.steps)
    header = ("Start zero → half", *steps, "Energy, µJ", "Latency", "Lines")
    note = (
        f"Accuracy in percent of {comparison.samples:,} test images; the ANN has "
        f"{number(comparison.ann_accuracy, 1)}. Energy: per image over the whole run, from the half start if "
        "there are two."
    )
    return Table("Accuracy, %", header, lines, (note, _REACH, *comparison.remarks))


def _by_method(comparison: Comparison) -> dict[str, list[Row]]:
    """The measured rows, those from zero and half together."""
    found: dict[str, list[Row]] = {}
    starts = {(row.method, row.initial) for row in comparison.rows if row.steps}
    for row in comparison.rows:
        both = row.initial in _BOTH and {(row.method, start) for start in _BOTH} <= starts
        if row.steps:
            found.setdefault(row.method if both else f"{row.method} {row.initial}", []).append(row)
    return {name: sorted(rows, key=lambda row: row.initial != _BOTH[0]) for name, rows in found.items()}


def _draw_gains(comparison: Comparison) -> tuple[tuple[Panel, ...], tuple[str, ...]]:
    """A figure for each number of steps, all with the methods in one order, and a sentence on the first."""
    panels: list[Panel] = []
    texts: list[str] = []
    order: list[str] = []
    for steps in comparison.steps:
        found = {(r.method, r.initial): r.accuracy[steps] for r in comparison.rows if steps in r.accuracy}
        both = [method for method, start in found if start == "half" and (method, "zero") in found]
        rows = {method: (found[method, "zero"], found[method, "half"]) for method in both}
        if rows and not order:
            order = sorted(rows, key=lambda method: -rows[method][1])
            gained = sum(half > zero for zero, half in rows.values())
            texts = [
                f"After {steps} steps, {gained} of {len(rows)} methods are more accurate from half the "
                "threshold than from zero.",
                "Methods in the order of their accuracy from half the threshold after these steps.",
            ]
        order += [method for method in rows if method not in order]
        if rows:
            shown = [(method, *rows[method]) for method in order if method in rows]
            panel = draw_gains(f"gains{steps}", f"After {steps} steps", shown, ann=comparison.ann_accuracy)
            panels.append(panel)
    return tuple(panels), tuple(texts)


@dataclass(frozen=True)
class _Entry:
    """One conversion: a run, or a row of a comparison.

    Attributes:
        names: Possible names, from short to unique.
        data: The data it was measured on.
        ann: Accuracy of the ANN.
        accuracy: Accuracy by steps.
        energy: Accuracy by energy per image, in µJ.
        costs: Steps, mean steps if known, spikes, operations and joules per image at the end.
        reach: Neurons, latency and lines, as text.
        findings: The findings of a diagnosis.
        settings: How it was done, if known.
    """

    names: tuple[str, ...]
    data: str
    ann: float | None
    accuracy: Mapping[int, float]
    energy: Mapping[float, float]
    costs: tuple[int, float | None, float, float, float]
    reach: tuple[str, str, str]
    findings: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> tuple[float, int]:
        """The highest accuracy, and the first step with it."""
        top = max(self.accuracy.values())
        return top, min(t for t, accuracy in self.accuracy.items() if accuracy == top)


def joined_page(
    records: Sequence[RunRecord | Comparison], out: Path | str, title: str = "Runs compared"
) -> Path:
    """Write one page that compares several runs.

    Args:
        records: Runs and comparisons, in the order to show them.
        out: The file to write.
        title: The title of the page.

    Returns:
        The file's path.

    Raises:
        ValueError: There is nothing to show.
    """
    entries = [entry for record in records for entry in _entries(record)]
    if not entries:
        raise ValueError("nothing to compare: pass at least one run with results")
    labelled = dict(zip(_labels(entries), entries, strict=True))
    ranked = _rank(labelled)
    coloured = {label: i for i, label in enumerate(ranked[:_COLOURED])}
    texts = (_CHOICE,) if len(ranked) > _COLOURED else ()
    findings = tuple(f"{label}: {text}" for label, entry in labelled.items() for text in entry.findings)
    settings = {label: entry.settings for label, entry in labelled.items() if entry.settings}
    first = next(iter(settings.values()), {})
    shared = {n: value for n, value in first.items() if all(s.get(n) == value for s in settings.values())}
    sections = [
        Section("Accuracy and energy", texts, _draw_entries(labelled, coloured), _tables(labelled)),
        Section("Findings", points=findings) if findings else None,
        _differing_settings(settings),
    ]
    return write_page(
        Path(out),
        "run.html.j2",
        title=title,
        lead=_lead(labelled),
        facts={
            "highest accuracy": f"{number(max(entry.best[0] for entry in entries))} %",
            "conversions": str(len(entries)),
        },
        sections=[section for section in sections if section is not None],
        settings=shared,
    )


def _entries(record: RunRecord | Comparison) -> list[_Entry]:
    if isinstance(record, RunRecord):
        return [_entry_of_run(record)]
    return [
        _Entry(
            names=(f"{row.method}, {row.initial}", f"{row.method}, {row.initial}, {record.title}"),
            data=f"{record.title}, {record.samples:,} images",
            ann=record.ann_accuracy if row.ann is None else row.ann,
            accuracy=row.accuracy,
            energy={1e6 * row.joules: row.accuracy[max(row.accuracy)]} if row.joules else {},
            # In the sum code images leave when they are silent, and a row does not hold their mean steps.
            costs=(row.steps, None if row.silence else row.steps, row.spikes, row.sop, row.joules),
            reach=row.reach,
        )
        for row in record.rows
        if row.accuracy
    ]


def _entry_of_run(record: RunRecord) -> _Entry:
    found = record.evaluation
    end = found.at(found.steps)
    name = f"{record.method}, {record.initial}{', early exit' if record.exit else ''}"
    return _Entry(
        names=(name, f"{name}, {record.title}", f"{name}, {record.title}, {found.steps} steps"),
        data=f"{record.dataset or DASH}, {found.samples:,} images",
        ann=record.ann_accuracy,
        accuracy={t: a for t, a in enumerate(found.accuracy, 1) if a is not None},
        energy=accuracy_by_energy(found),
        costs=(found.steps, end.mean_steps, end.spikes, end.sop, end.joules),
        reach=(
            f"{sum(found.neurons.values()):,}",
            *((DASH, DASH) if found.timing is None else found.timing.cells),
        ),
        findings=() if record.diagnosis is None else tuple(map(str, record.diagnosis.findings)),
        settings=settings_of(record),
    )


def _labels(entries: Sequence[_Entry]) -> list[str]:
    """For each entry its shortest unique name; numbered where there is none."""
    counts = Counter(name for entry in entries for name in set(entry.names))
    names = [next((n for n in entry.names if counts[n] == 1), entry.names[-1]) for entry in entries]
    if len(set(names)) == len(names):
        return names
    return [f"{i}. {name}" for i, name in enumerate(names, 1)]


def _rank(labelled: Mapping[str, _Entry]) -> list[str]:
    """Those near the highest accuracy first, by energy; the others by accuracy."""
    top = max(entry.best[0] for entry in labelled.values())

    def key(label: str) -> tuple[bool, float]:
        accuracy, joules = labelled[label].best[0], labelled[label].costs[-1]
        near = accuracy >= top - _NEAR
        return not near, joules if near else -accuracy

    return sorted(labelled, key=key)


def _lead(labelled: Mapping[str, _Entry]) -> str:
    best = max(labelled, key=lambda label: labelled[label].best[0])
    top, steps = labelled[best].best
    others = sum(entry.best[0] == top for entry in labelled.values()) - 1
    text = (
        f"{len(labelled)} conversions. Highest accuracy: {number(top)} %, {best}, after {steps} steps"
        f"{f' (and {others} more)' if others else ''}."
    )
    if len({entry.data for entry in labelled.values()}) > 1:
        text += " Not all were measured on the same data: see the table before comparing them."
    return text


def _draw_entries(labelled: Mapping[str, _Entry], coloured: Mapping[str, int]) -> tuple[Panel, ...]:
    anns = {entry.ann for entry in labelled.values()}
    ann = anns.pop() if len(anns) == 1 else None
    ways: dict[str, tuple[str, Axis, Callable[[_Entry], Mapping[float, float]]]] = {
        "accuracy": (
            "Accuracy after each time step",
            Axis(),
            lambda entry: {float(t): a for t, a in entry.accuracy.items()},
        ),
        "energy": ("Accuracy over energy", ENERGY_AXIS, lambda entry: entry.energy),
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
        shown = (str(steps), number(latency, 1), number(last), f"{spikes:,.0f}")
        costs.append(Line(label, (*shown, f"{sop:,.0f}", microjoules(joules), *entry.reach)))
    header = ("Accuracy, %", "ANN", *(f"T={t}" for t in moments), "Measured on")
    ends = ("At the end", "Steps", "Mean steps", "Accuracy, %", "Spikes", "SOP", "Energy, µJ")
    return (
        Table("Accuracy", header, tuple(accuracy)),
        Table("Spikes, operations and energy per image", (*ends, *_REACHED), tuple(costs), (_REACH,)),
    )


def _differing_settings(settings: Mapping[str, Mapping[str, str]]) -> Section | None:
    """The settings in which runs differ, a column for each run; comparisons have no settings."""
    lines = []
    for name in dict.fromkeys(name for found in settings.values() for name in found):
        values = tuple(found.get(name, DASH) for found in settings.values())
        if len(set(values)) > 1:
            lines.append(Line(name, values))
    if not lines:
        return None
    table = Table("Settings that differ", ("", *settings), tuple(lines))
    return Section("Runs", tables=(table,), words=True)
