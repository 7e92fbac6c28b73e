"""The tables of docs/timm.md, from the record of benchmarks/timm_models.py."""

from collections.abc import Callable
from typing import Any

from tools.markdown import table
from tools.measured import read


def architectures() -> str:
    """What becomes of each architecture."""
    record = read("timm")
    rows = record["rows"]
    taken = sum(row["converts"] for row in rows)
    text = (
        f"Of {len(rows)} architectures whose activations are all ReLU or ReLU6, {taken} convert with one "
        f"site for each activation call. Versions: timm {record['timm']}, torch {record['torch']}."
    )
    head = ["Architecture", "input", "activation calls", "sites", "error of the limit"]
    return f"{text}\n\n{table(head, [_cells(row) for row in rows])}"


def _cells(row: dict[str, Any]) -> list[str]:
    converted = [str(row["sites"]), f"{row['error']:.0e}"] if "sites" in row else ["refused", ""]
    return [row["model"], str(row["size"]), str(row["calls"]), *converted]


def refusals() -> str:
    """The first reason of each architecture that is refused or not counted."""
    reasons: dict[str, list[str]] = {}
    for row in read("timm")["rows"]:
        if "why" in row:
            lines = [line.strip() for line in row["why"].splitlines()]
            first = lines[1] if lines[0].endswith(":") else lines[0]
            reasons.setdefault(first.split("): ")[-1], []).append(row["model"])
        elif not row["converts"]:
            reasons.setdefault(
                "not counted, as their limits differ from the model's output by more than 0.001", []
            ).append(row["model"])
    return "\n".join(f"- {', '.join(names)}: {reason}" for reason, names in reasons.items())


BLOCKS: dict[str, Callable[[], str]] = {"timm-architectures": architectures, "timm-refusals": refusals}
