"""The tables of docs/hugging-face.md, from the record of benchmarks/hugging_face.py."""

from collections.abc import Callable
from typing import Any

from tools.markdown import table
from tools.measured import read


def architectures() -> str:
    """What becomes of each architecture."""
    record = read("hugging-face")
    rows = record["rows"]
    taken = sum(row["converts"] for row in rows)
    text = (
        f"{taken} of {len(rows)} architectures convert as they are. Versions: transformers "
        f"{record['transformers']}, torch {record['torch']}."
    )
    head = [
        "Architecture",
        "class",
        "sites",
        "silent after",
        "to the quantised ANN",
        "verified",
        "to the model",
    ]
    return f"{text}\n\n{table(head, [_cells(row) for row in rows if row['converts']])}"


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["model"],
        row["type"],
        str(row["sites"]),
        str(row["silent_after"]),
        "equal" if row["equal"] else "differs",
        "yes" if row["verified"] else "no",
        f"{row['error']:.0e}",
    ]


def refusals() -> str:
    """The first reason of each architecture that is refused."""
    lines = []
    for row in read("hugging-face")["rows"]:
        if not row["converts"]:
            reasons = [line.strip() for line in row["why"].splitlines()]
            first = reasons[1] if reasons[0].endswith(":") else reasons[0]
            lines.append(f"- {row['model']}: {first.split('): ')[-1]}")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "hugging-face-architectures": architectures,
    "hugging-face-refusals": refusals,
}
