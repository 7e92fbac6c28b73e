"""What the command line shows of a result."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from rheobase.contest import Comparison
from rheobase.evaluation import Evaluation

_SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def show(results: Mapping[str, Evaluation], ann: float | None = None) -> None:
    """Print accuracy over steps, one row for each start, and what a run cost in the end."""
    longest = max(result.steps for result in results.values())
    steps = [t for t in _SHOWN if t <= longest]
    table = _table("percent right", steps)
    for name, r in results.items():
        accuracy = [f"{r.accuracy[t - 1]:.1f}" if t <= r.steps else "" for t in steps]
        table.add_row(f"start {name}", *accuracy, *_costs(r.spikes_per_image[-1], r.sop[-1], r.joules[-1]))
    _print(table, longest, ann)


def show_comparison(comparison: Comparison) -> None:
    """Print methods side by side."""
    table = _table("method", comparison.steps, "start")
    for row in comparison.rows:
        values = [f"{row.accuracy[t]:.1f}" if t in row.accuracy else "–" for t in comparison.steps]
        costs = _costs(row.spikes, row.sop, row.joules) if row.steps else ("", "", "")
        table.add_row(row.method, row.initial, *values, *costs, style=None if row.steps else "dim")
    _print(table, comparison.steps[-1], comparison.ann_accuracy)
    for note in dict.fromkeys(row.note for row in comparison.rows if row.note):
        names = dict.fromkeys(row.method for row in comparison.rows if row.note == note)
        Console(highlight=False).print(f"{', '.join(names)}: {note}.")


def _table(title: str, steps: Sequence[int], *more: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in (title, *more):
        table.add_column(column, no_wrap=True)
    for column in (*(f"T={t}" for t in steps), "spikes", "SOP", "energy"):
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _costs(spikes: float, sop: float, joules: float) -> tuple[str, str, str]:
    return _short(spikes), _short(sop), f"{joules * 1e6:.3g} µJ"


def _print(table: Table, longest: int, ann: float | None) -> None:
    console = Console(highlight=False)
    console.print(table)
    console.print(
        f"Spikes, synaptic operations (SOP) and energy are those of one image over {longest} steps."
    )
    if ann is not None:
        console.print(f"The network before conversion: {ann:.2f} %.")


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"
