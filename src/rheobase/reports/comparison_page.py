"""The page about many methods on one network."""

from pathlib import Path

from rheobase.analysis import Comparison, Row
from rheobase.reports.curves import draw_gains
from rheobase.reports.drawing import Panel
from rheobase.reports.pages import Section, write_page
from rheobase.reports.tables import DASH, Line, Table, microjoules, number

_BOTH = ("zero", "half")


def comparison_page(comparison: Comparison, out: Path | str) -> Path:
    """Write one page with a comparison's table, and at each number of steps what the half start gains."""
    if not any(row.steps for row in comparison.rows):
        raise ValueError("there is nothing to show: no method could be measured")
    lead = (
        f"One network, right on {number(comparison.ann_accuracy)} % of {comparison.samples:,} images before "
        "conversion, by every method and start."
    )
    return write_page(
        Path(out),
        "run.html.j2",
        title=comparison.title,
        lead=lead,
        sections=[Section("Methods", panels=_gains(comparison), tables=(comparison_table(comparison),))],
        settings={
            "it took": f"{comparison.seconds:.0f} s",
            "versions": ", ".join(f"{n} {v}" for n, v in comparison.versions.items()),
            **({"command": comparison.command} if comparison.command else {}),
        },
    )


def comparison_table(comparison: Comparison) -> Table:
    """What was measured, with what each row cost; rows without a number are named below."""
    lines = []
    for row in comparison.rows:
        if row.steps:
            accuracy = (number(row.accuracy.get(t), 1) for t in comparison.steps)
            costs = (f"{row.spikes:,.0f}", f"{row.sop:,.0f}", microjoules(row.joules))
            lines.append(Line(row.method, (row.initial, *accuracy, *costs)))
    header = ("Method", "Start", *(f"T={t}" for t in comparison.steps), "Spikes", "SOP", "Energy, µJ")
    notes = (*_remarks(comparison), "Spikes, synaptic operations (SOP) and energy: of one image, whole run.")
    return Table("Percent right", header, tuple(lines), notes)


def gains_table(comparison: Comparison) -> Table:
    """A line for every method with what its zero and its half start give, for a README.

    Other starts have lines of their own, and methods that give the very same share one.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, rows in _by_method(comparison).items():
        cells = (" → ".join(number(row.accuracy.get(t), 1) for row in rows) for t in comparison.steps)
        texts = (DASH if set(cell.split(" → ")) == {DASH} else cell for cell in cells)
        alike.setdefault((*texts, microjoules(rows[-1].joules)), []).append(name)
    lines = tuple(Line(", ".join(names), values) for values, names in alike.items())
    header = ("Start zero → half", *(f"T={t}" for t in comparison.steps), "Energy, µJ")
    ann, samples = number(comparison.ann_accuracy, 1), f"{comparison.samples:,}"
    note = (
        f"Percent right of {samples} test images; before conversion {ann}. Energy: of one image over the "
        "whole run, from the half start where there are two."
    )
    return Table("Percent right", header, lines, (note, *_remarks(comparison)))


def _by_method(comparison: Comparison) -> dict[str, list[Row]]:
    """The rows that were measured, those from zero and half together."""
    found: dict[str, list[Row]] = {}
    starts = {(row.method, row.initial) for row in comparison.rows if row.steps}
    for row in comparison.rows:
        both = row.initial in _BOTH and {(row.method, start) for start in _BOTH} <= starts
        if row.steps:
            found.setdefault(row.method if both else f"{row.method} {row.initial}", []).append(row)
    return {name: sorted(rows, key=lambda row: row.initial != _BOTH[0]) for name, rows in found.items()}


def _remarks(comparison: Comparison) -> tuple[str, ...]:
    """What is special about some methods, each remark once."""
    notes = dict.fromkeys(row.note for row in comparison.rows if row.note)
    named = {note: dict.fromkeys(r.method for r in comparison.rows if r.note == note) for note in notes}
    return tuple(f"{', '.join(names)}: {note}." for note, names in named.items())


def _gains(comparison: Comparison) -> tuple[Panel, ...]:
    panels = []
    for steps in comparison.steps:
        found = {(r.method, r.initial): r.accuracy[steps] for r in comparison.rows if steps in r.accuracy}
        rows = [
            (method, found[method, "zero"], found[method, "half"])
            for method in dict.fromkeys(method for method, _ in found)
            if {(method, "zero"), (method, "half")} <= found.keys()
        ]
        if rows:
            title = f"After {steps} steps"
            panels.append(draw_gains(f"gains{steps}", title, rows, ann=comparison.ann_accuracy))
    return tuple(panels)
