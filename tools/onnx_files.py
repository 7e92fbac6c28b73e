"""The table of docs/onnx.md, from the record of benchmarks/onnx_files.py."""

from collections.abc import Callable
from typing import Any

from tools.markdown import table
from tools.measured import read


def files() -> str:
    """How the networks in files convert."""
    record = read("onnx-files")
    samples = record["samples"]
    text = f"Fitted to {samples['calibration']} inputs, and measured on {samples['test']} others, on a CPU:"
    head = [
        "Network, package", "input", "parameters", "reading", "levels", "sites", "silent after",
        "to the quantised ANN", "error", "same class",
    ]  # fmt: skip
    rows = [_cells(row, grid) for row in record["rows"] for grid in row["grids"]]
    return f"{text}\n\n{table(head, rows)}"


def _cells(row: dict[str, Any], grid: dict[str, Any]) -> list[str]:
    differ, same = grid["differ"], grid["same_class"]
    return [
        f"{row['network']}, {row['package']}",
        " × ".join(map(str, row["input"])),
        f"{row['parameters']:,}",
        "–" if row["read"] is None else f"{row['read']:.0e}",
        str(grid["levels"]),
        str(grid["sites"]),
        str(grid["silent_after"]),
        "equal" if not differ else f"{differ:.0e} of the values differ",
        f"{100 * grid['error']:.1f} %",
        "–" if same is None else f"{100 * same:.1f} %",
    ]


BLOCKS: dict[str, Callable[[], str]] = {"onnx-files": files}
