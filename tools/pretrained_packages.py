"""The tables of docs/pretrained-packages.md, from the record of benchmarks/pretrained_packages.py."""

from collections.abc import Callable
from typing import Any

from tools.markdown import table
from tools.measured import read

STEPS = (2, 4, 6, 8, 10, 12)


def agreement() -> str:
    """How many answers are those of the model."""
    record = read("pretrained-packages")
    head = ["Network", "L", "sizes", *(f"T={t}" for t in STEPS), "at the end"]
    head += ["silent: median", "all", "cosine", "to the quantised ANN", "verified"]
    rows = [_cells(row, record["read"]) for row in record["rows"]]
    sources = {f"{row['network']}: {row['data']} (`{row['package']}`)": None for row in record["rows"]}
    accuracy = ". ".join(
        f"{row['network']} with L = {row['levels']}: {row['accuracy'][-1]:.1f} % of the classes are right, "
        f"of the ANN {row['ann']:.1f} %"
        for row in record["rows"]
        if row["ann"] is not None
    )
    text = (
        f"Answers like those of the model, in percent. {'; '.join(sources)}. {record['calibration']} other "
        f"inputs for calibration. {accuracy}{'. ' if accuracy else ''}CPU, torch {record['torch']}."
    )
    return f"{table(head, rows)}\n\n{text}"


def _cells(row: dict[str, Any], read_out: list[int]) -> list[str]:
    shares = dict(zip(read_out, row["agreement"], strict=True))
    silent = row["silent"]
    return [
        row["network"],
        str(row["levels"]),
        str(row["sizes"]),
        *(f"{shares[t]:.1f}" for t in STEPS),
        f"{row['agreement'][-1]:.1f}",
        f"{silent['median']:.0f}",
        f"{silent['all']:.0f}",
        f"{row['cosine']:.4f}",
        "equal" if row["equal"] else "differs",
        "yes" if row["verified"] else "no",
    ]


BLOCKS: dict[str, Callable[[], str]] = {"pretrained-packages": agreement}
