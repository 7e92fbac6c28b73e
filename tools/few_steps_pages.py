"""The tables of methods for few steps, from the records."""

from collections.abc import Sequence

from tools.few_steps_records import FewSteps
from tools.markdown import table


def show(records: Sequence[FewSteps], most_lines: int | None = None) -> str:
    """The table of the records, each network by true latency."""
    head = ["Network", "Method", "T", "pre", "Latency", "with delays", "Lines", "Accuracy", "ANN"]
    head += ["Events", "Neurons"]
    rows = []
    for r in records:
        for row in sorted(r.rows, key=lambda row: (row.latency, -row.accuracy)):
            if most_lines is None or row.lines <= most_lines:
                cells = [r.network, row.method, str(row.steps), str(row.pre), str(row.latency)]
                cells += [str(row.with_delays), str(row.lines), f"{row.accuracy:.2f}", f"{r.ann:.2f}"]
                rows.append([*cells, f"{row.events:,.0f}", f"{row.neurons:,}"])
    return table(head, rows)
