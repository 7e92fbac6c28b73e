"""The tables of docs/torchvision.md, from the record of benchmarks/torchvision_models.py."""

from collections.abc import Callable
from typing import Any

from tools.markdown import table
from tools.measured import read

SPIKE_STEPS = (10, 20)


def models() -> str:
    """What becomes of each model."""
    record = read("torchvision")
    rows, steps = record["rows"], [str(t) for t in record["steps"]]
    head = ["Model", "input", "activation calls", "sites", "neurons", "limit", *(f"T = {t}" for t in steps)]
    head += [f"few-spikes, K = {k}" for k in SPIKE_STEPS]
    head += ["sigma-delta: silent after", "to its limit", "L = 2^20, to the ANN"]
    taken, smooth, exact = (
        sum(bool(row.get(name, {}).get("converts")) for row in rows)
        for name in ("max-norm", f"few-spikes {SPIKE_STEPS[0]}", "sigma-delta")
    )
    firing = sum(row["max-norm"].get("spiking") == row["sites"] for row in rows)
    text = (
        f"`max-norm` converts {taken} of {len(rows)} models as they are, `few-spikes` {smooth}, "
        f"`sigma-delta` {exact}. In {firing} of the {taken}, all sites fired. Versions: "
        f"torchvision {record['torchvision']}, torch {record['torch']}."
    )
    return f"{text}\n\n{table(head, [_cells(row, steps) for row in rows])}"


def _cells(row: dict[str, Any], steps: list[str]) -> list[str]:
    calls = " + ".join(f"{count} {name}" for name, count in row["calls"].items()) or "0"
    cells = [row["model"], str(row["size"]), calls, str(row["sites"])]
    run = row.get("max-norm", {})
    if run.get("converts"):
        cells += [f"{row['neurons']:,}", f"{run['twin_error']:.0e}"]
        cells += [*(f"{run['errors'][t]:.2%}" for t in steps)]
    else:
        cells += ["refused", *[""] * (len(steps) + 1)]
    for k in SPIKE_STEPS:
        other = row.get(f"few-spikes {k}", {})
        cells.append(f"{other['errors'][str(k)]:.2%}" if other.get("converts") else "refused")
    exact, fine = row.get("sigma-delta", {}), row.get("sigma-delta, fine", {})
    if not exact.get("converts"):
        return [*cells, "refused", "", ""]
    (last,) = exact["errors"].values()
    return [*cells, str(exact["last_event"]), f"{last:.0e}", f"{fine['ann_error']:.0e}"]


def functions() -> str:
    """The error of a single few-spikes neuron, by its function."""
    rows = read("torchvision")["rows"]
    lines = []
    for function in ("silu", "sigmoid"):
        errors = []
        for steps in SPIKE_STEPS:
            found = (row.get(f"few-spikes {steps}", {}).get("neuron_errors", {}) for row in rows)
            errors.append(max(error[function] for error in found if function in error))
        lines.append((function, *(f"{error:.1%}" for error in errors)))
    return table(("Error of one neuron", *(f"K = {k}" for k in SPIKE_STEPS)), lines)


def refusals() -> str:
    """The calls that cannot be converted: for each model a line per kind, with its first place."""
    lines = []
    for row in read("torchvision")["rows"]:
        if "untraceable" in row:
            lines += [f"**{row['model']}** could not be traced:", "", "```", row["untraceable"], "```", ""]
        kinds: dict[tuple[str, str], list[str]] = {}
        for call in row["refused"]:
            kinds.setdefault((call["call"], call["why"]), []).append(call["where"])
        lines += [f"**{row['model']}**: {len(row['refused'])} calls", ""] if kinds else []
        for (call, why), places in kinds.items():
            lines.append(f"- {len(places)} × `{call}`, first at `{places[0]}`: {why}")
        lines += [""] if kinds else []
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "torchvision-models": models,
    "torchvision-functions": functions,
    "torchvision-refusals": refusals,
}
