"""The page about many methods on one network."""

from pathlib import Path

from rheobase.contest import Comparison
from rheobase.reports.drawing import Panel
from rheobase.reports.figures import draw_gains
from rheobase.reports.pages import write_page
from rheobase.reports.tables import Line, Table, number


def comparison_page(comparison: Comparison, out: Path | str) -> Path:
    """Write one page with a comparison's table, and at each number of steps what the half start gains."""
    if not any(row.steps for row in comparison.rows):
        raise ValueError("there is nothing to show: no method could be measured")
    return write_page(
        Path(out),
        "accuracy.html.j2",
        title=comparison.title,
        ann=number(comparison.ann_accuracy),
        samples=f"{comparison.samples:,}",
        panels=_gains(comparison),
        tables=[comparison_table(comparison)],
        settings={
            "seconds": f"{comparison.seconds:.0f}",
            "versions": ", ".join(f"{n} {v}" for n, v in comparison.versions.items()),
        },
    )


def comparison_table(comparison: Comparison) -> Table:
    """A comparison's rows, with what each cost."""
    lines = []
    for row in comparison.rows:
        accuracy = tuple(number(row.accuracy.get(t), 1) for t in comparison.steps)
        costs = (
            (f"{row.spikes:,.0f}", f"{row.sop:,.0f}", f"{1e6 * row.joules:.3g}") if row.steps else ("–",) * 3
        )
        lines.append(Line(row.method, (row.initial, *accuracy, *costs)))
    notes = [f"{row.method} {row.note}." for row in comparison.rows if row.note]
    notes.append("Spikes, synaptic operations and energy are those of one image over the whole run.")
    header = ("Method", "Start", *(f"T={t}" for t in comparison.steps), "Spikes", "SOP", "Energy, µJ")
    return Table("Percent right", header, tuple(lines), tuple(dict.fromkeys(notes)))


def _gains(comparison: Comparison) -> list[Panel]:
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
    return panels
