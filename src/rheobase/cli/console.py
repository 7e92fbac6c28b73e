"""What the command line shows of a result."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rheobase.analysis import Comparison, Evaluation, Timing, compare_exit
from rheobase.exchange import HardwareCheck
from rheobase.simulation import Exit

_SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def show(results: Mapping[str, Evaluation], ann: float | None = None) -> None:
    """Print accuracy over steps, one row for each start, and what a run cost in the end."""
    longest = max(result.steps for result in results.values())
    steps = [t for t in _SHOWN if t <= longest]
    if (console := Console()).is_terminal:
        steps = steps[-max(2, (console.width - 44) // 6) :]  # six letters each, beside the other columns
    table = _table("percent right", steps)
    for name, r in results.items():
        reached = [r.at(t).accuracy if t <= r.steps else None for t in steps]
        accuracy = ["–" if a is None else f"{a:.1f}" for a in reached]
        end = r.at(r.steps)
        table.add_row(f"start {name}", *accuracy, *_costs(end.spikes, end.sop, end.joules))
    _print(table, longest, ann)


def show_exit(full: Evaluation, early: Evaluation, rule: Exit) -> None:
    """Print what leaving early spares against all steps for every image, and when images left."""
    console, saving = Console(highlight=False), compare_exit(full, early)
    console.print(f"Leaving early, {_describe(rule)}:")
    console.print(
        f"  {early.accuracy[-1]:.2f} % instead of {full.accuracy[-1]:.2f} %, after {early.latency[-1]:.1f} "
        f"instead of {full.latency[-1]:.0f} steps on average"
    )
    console.print(
        f"  spared: {saving.steps:.0%} of the steps, {saving.spikes:.0%} of the spikes, "
        f"{saving.joules:.0%} of the energy, {saving.seconds:.0%} of the time"
    )
    left = (f"{count} after {t}" for t, count in enumerate(early.exits, start=1) if count)
    console.print(f"  images left: {', '.join(left)}")


def _describe(rule: Exit) -> str:
    kind = type(rule).__name__.lower()
    if rule.level == math.inf:
        return f"by {kind}: no level is safe, so nobody does"
    return f"by {kind} of at least {rule.level:.4g} from step {rule.after} on"


def show_fit(fit: HardwareCheck) -> None:
    """Print what does not fit a target, what was not checked, and accuracy at every step."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{fit.target} ({fit.source})", markup=False)
    for violation in fit.violations:
        console.print(f"[bold red]x[/] [bold]{escape(violation.layer)}[/]: {escape(violation.found)}")
        console.print(f"    limit: {violation.limit}\n    change: {violation.remedy}", markup=False)
    for what in fit.unchecked:
        console.print(f"- not checked: {what}", markup=False)
    if fit.simulated is not None:
        console.print(f"- {fit.simulated}", markup=False)
    table = Table("T", "percent right", box=None, header_style="bold", pad_edge=False)
    rows = [["–" if right is None else f"{right:.2f}"] for right in fit.before]
    if fit.after is not None:
        table.add_column("in whole numbers", justify="right")
        rows = [
            [*row, "–" if right is None else f"{right:.2f}"]
            for row, right in zip(rows, fit.after, strict=True)
        ]
    for step, row in enumerate(rows, start=1):
        table.add_row(str(step), *row)
    console.print(table)
    console.print(f"{fit.target}: {'fits, as far as it was checked' if fit.fits else 'does not fit'}")


def show_timings(timings: Mapping[str, Timing], batch: int, title: str) -> None:
    """Print how fast some ways to do the same are."""
    columns = ("images/s", "slowest to fastest", "first call, s", "memory, MiB")
    table = Table(title, *columns, box=None, header_style="bold", pad_edge=False)
    for name, t in timings.items():
        speed, slow, fast = (batch / seconds for seconds in (t.median, t.slowest, t.fastest))
        memory = f"{t.peak_bytes / 2**20:,.0f}" if t.peak_bytes else "not known"
        table.add_row(name, f"{speed:,.1f}", f"{slow:,.1f} to {fast:,.1f}", f"{t.first:.2f}", memory)
    _print_whole(table)


def show_comparison(comparison: Comparison) -> None:
    """Print methods side by side."""
    table = _table("method", comparison.steps, "start")
    for row in comparison.rows:
        if row.steps:
            values = [f"{row.accuracy[t]:.1f}" if t in row.accuracy else "–" for t in comparison.steps]
            table.add_row(row.method, row.initial, *values, *_costs(row.spikes, row.sop, row.joules))
    lengths = {row.steps for row in comparison.rows if row.steps}
    _print(table, lengths.pop() if len(lengths) == 1 else None, comparison.ann_accuracy)
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


def _print_whole(table: Table) -> None:
    """Print a table in full width: a number that is cut would be another."""
    console = Console(highlight=False)
    wide = console.options.update(width=1000)
    console.width = max(console.width, console.measure(table, options=wide).maximum)
    console.print(table)


def _print(table: Table, steps: int | None, ann: float | None) -> None:
    """Print a table of costs over so many steps, or each over its own run."""
    _print_whole(table)
    console = Console(highlight=False)
    run = "its whole run" if steps is None else f"{steps} steps"
    console.print(
        f"Spikes, synaptic operations (SOP) and energy are those of one image over {run}.", soft_wrap=True
    )
    if ann is not None:
        console.print(f"The network before conversion: {ann:.2f} %.")


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"
