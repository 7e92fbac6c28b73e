"""The page about many methods on one network."""

from pathlib import Path

from rheobase.compare import Comparison
from rheobase.records import environment
from rheobase.reports.figures import Panel, draw_gains
from rheobase.reports.pages import write_page
from rheobase.reports.tables import Line, Table, number


def comparison_page(title: str, comparison: Comparison, out: Path | str) -> Path:
    """Write one page with a comparison's table, and at each number of steps what the half start gains.

    Args:
        title: Which network, on which data.
        comparison: What was measured.
        out: The file to write.
    """
    measured = [row.result for row in comparison.rows if row.result is not None]
    if not measured:
        raise ValueError("there is nothing to show: no method could be measured")
    return write_page(
        Path(out),
        "accuracy.html.j2",
        title=title,
        ann=number(comparison.ann_accuracy),
        samples=f"{measured[0].samples:,}",
        panels=_gains(comparison),
        tables=[_table(comparison)],
        settings={"versions": ", ".join(f"{n} {v}" for n, v in environment().items())},
    )


def _gains(comparison: Comparison) -> list[Panel]:
    panels = []
    for steps in comparison.steps:
        by_start = {(r.method, r.initial): r.at(steps) for r in comparison.rows}
        rows = [
            (method, zero, half)
            for method in dict.fromkeys(r.method for r in comparison.rows)
            if (zero := by_start.get((method, "zero"))) is not None
            and (half := by_start.get((method, "half"))) is not None
        ]
        if rows:
            title = f"After {steps} steps"
            panels.append(draw_gains(f"gains{steps}", title, rows, ann=comparison.ann_accuracy))
    return panels


def _table(comparison: Comparison) -> Table:
    lines, notes = [], []
    for row in comparison.rows:
        if row.note:
            notes.append(f"{row.method} {row.note}.")
        accuracy = tuple(number(row.at(t)) for t in comparison.steps)
        costs: tuple[str, ...] = ("–", "–", "–")
        if row.result is not None:
            r = row.result
            costs = (f"{r.spikes_per_image[-1]:,.0f}", f"{r.sop[-1]:,.0f}", f"{1e6 * r.joules[-1]:.4g}")
        lines.append(Line(row.method, (row.initial, *accuracy, *costs)))
    header = ("", "Start", *(f"T={t}" for t in comparison.steps), "Spikes", "SOP", "Energy, µJ")
    notes.append(f"Spikes, synaptic operations and energy of one image over {comparison.steps[-1]} steps.")
    return Table("Percent right", header, tuple(lines), tuple(dict.fromkeys(notes)))
