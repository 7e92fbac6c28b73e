"""Results as text on the terminal."""

import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from rheobase.analysis import Comparison, Evaluation, Timing, compare_exit
from rheobase.exchange import HardwareCheck
from rheobase.io import Result, format_table
from rheobase.simulation import Exit

if TYPE_CHECKING:
    from rheobase.papers import Record

_COLUMNS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_COSTS = ("spikes", "SOP", "energy")
_REACH = ("neurons", "latency", "lines")


def show_evaluations(results: Mapping[str, Evaluation], ann: float | None = None) -> None:
    """Print accuracy over steps, a row per network by its name, and the costs of a run."""
    ends = {result.steps for result in results.values()}
    longest = max(ends)
    steps = sorted({t for t in _COLUMNS if t <= longest} | ends)
    rows = []
    for name, r in results.items():
        reached = (r.at(t).accuracy if t <= r.steps else None for t in steps)
        end = r.at(r.steps)
        rows.append((name, *map(_percent, reached), *_costs(end.spikes, end.sop, end.joules)))
    _show_table(("accuracy, %", *(f"T={t}" for t in steps), *_COSTS), rows, f"{longest} steps", ann)
    for name, r in results.items():
        for line in (*r.costs, *r.notes):
            typer.echo(f"{name}: {line}." if len(results) > 1 else f"{line[0].upper()}{line[1:]}.")


def show_exit(full: Evaluation, early: Evaluation, rule: Exit, fitted: str) -> None:
    """Print how a rule was fitted, what it saves compared with all steps for all, and when images left."""
    saving, a, b = compare_exit(full, early), full.at(full.steps), early.at(early.steps)
    kind = type(rule).__name__.lower()
    level = f"at least {rule.level:.4g} from step {rule.after} on"
    if rule.level == math.inf:
        level = "no level keeps the accuracy, so no image leaves early"
    typer.echo(f"Early exit, {kind}: {level}")
    typer.echo(f"  {fitted}")
    typer.echo(
        f"  accuracy {b.accuracy:.2f} % instead of {a.accuracy:.2f} %, mean steps {b.mean_steps:.1f} instead "
        f"of {a.mean_steps:.0f}"
    )
    typer.echo(
        f"  saved: {saving.steps:.0%} of the steps, {saving.spikes:.0%} of the spikes, "
        f"{saving.joules:.0%} of the energy, {saving.seconds:.0%} of the time"
    )
    left = (f"{count} after {t}" for t, count in enumerate(early.exits, start=1) if count)
    typer.echo(f"  images that left: {', '.join(left)}")


def show_result(result: Result) -> None:
    """Print a result, its table in several parts if a terminal is too narrow."""
    typer.echo(result.text(_terminal_width()))


def show_hardware(check: HardwareCheck) -> None:
    """Print the result of a check, and accuracy at every step."""
    typer.echo(check)
    columns = {"accuracy, %": check.before} | ({} if check.after is None else {"in integers": check.after})
    rows = zip(*columns.values(), strict=True)
    cells = ((str(t), *(_percent(value, 2) for value in row)) for t, row in enumerate(rows, start=1))
    typer.echo(format_table(("T", *columns), cells))


def show_timings(timings: Mapping[str, Timing], batch: int, title: str) -> None:
    """Print the speed of several ways to compute the same."""
    rows = []
    for name, t in timings.items():
        speed, slow, fast = (f"{batch / seconds:,.1f}" for seconds in (t.median, t.slowest, t.fastest))
        memory = f"{t.peak_bytes / 2**20:,.0f}" if t.peak_bytes else "not known"
        rows.append((name, speed, f"{slow} to {fast}", f"{t.first:.2f}", memory))
    header = (title, "images/s", "slowest to fastest", "first call, s", "memory, MiB")
    typer.echo(format_table(header, rows))


def show_comparison(comparison: Comparison) -> None:
    """Print methods side by side."""
    measured = [row for row in comparison.rows if row.steps]
    rows = [
        (
            row.method,
            row.initial,
            *(_percent(row.accuracy.get(t)) for t in comparison.steps),
            *_costs(row.spikes, row.sop, row.joules),
            *row.reach,
        )
        for row in measured
    ]
    lengths = {row.steps for row in measured}
    run = f"{lengths.pop()} steps" if len(lengths) == 1 else "the whole run"
    header = ("method", "start", *(f"T={t}" for t in comparison.steps), *_COSTS, *_REACH)
    _show_table(header, rows, run, comparison.ann_accuracy, left=2)
    typer.echo(
        "Latency: steps to the answer, with the windows of all layers; in parentheses with one step of delay "
        "per layer. Lines: wires of a neuron."
    )
    for row in measured:
        if row.silence is not None:
            typer.echo(f"{row.method}, start {row.initial}: {row.silence}.")
    for remark in comparison.remarks:
        typer.echo(remark)


def show_records(found: Sequence["Record"]) -> None:
    """Print the accuracies of measured records."""
    steps = sorted({t for record in found for t in record.accuracy if t in _COLUMNS})
    rows = [
        (
            record.table,
            ", ".join(filter(None, [record.method, str(record.settings.get("label", ""))])),
            record.initial,
            f"{record.ann_accuracy:.2f}",
            *(_percent(record.accuracy.get(t), 2) for t in steps),
        )
        for record in found
    ]
    _echo_table(("accuracy, %", "method", "start", "ANN", *(f"T={t}" for t in steps)), rows, 3)


def _show_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], run: str, ann: float | None, left: int = 1
) -> None:
    _echo_table(header, rows, left)
    typer.echo(f"Spikes, synaptic operations (SOP) and energy are per image, over {run}.")
    if ann is not None:
        typer.echo(f"Accuracy before conversion: {ann:.2f} %.")


def _echo_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    """Print a table, in several parts if a terminal is too narrow."""
    typer.echo(format_table(header, rows, left=left, width=_terminal_width()))


def _terminal_width() -> int | None:
    """The number of characters of a line of the terminal; None if the output goes elsewhere."""
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if on_terminal else None


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _costs(spikes: float, sop: float, joules: float) -> tuple[str, str, str]:
    return _short(spikes), _short(sop), f"{joules * 1e6:.3g} µJ"


def _short(count: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"
