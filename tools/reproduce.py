"""The tables of docs/reproduce.md, and of docs/how-many-steps.md on early exit."""

from collections.abc import Callable, Sequence
from statistics import geometric_mean, stdev
from typing import Any

from rheobase import papers
from rheobase.papers.candidates import READING
from rheobase.papers.records import Record
from rheobase.papers.report import tables
from rheobase.papers.report.groups import group
from rheobase.reports import DASH, RunRecord, number, to_markdown
from rheobase.training import models
from tools.markdown import table
from tools.measured import ROOT, read, results

PAPER = papers.get("opi2022")
EXIT = ROOT / "tools" / "records" / "exit-resnet20-cifar10.json"


def seeds() -> str:
    """Every network that was trained with several seeds: the paper's values, and each training."""
    columns = (8, 16, 32, 64, 128)
    lines = []
    for cell in PAPER.cells:
        g = tables.headline(PAPER, cell, results())
        if g is not None and len(g.records) > 1:
            lines.append((f"{cell.title}, paper", *tables.printed_values(cell.own, columns)))
            lines += [(f"seed {r.seed}", *_accuracies(r, columns)) for r in g.records]
            lines.append(("mean ± SD", *tables.measured_values(g, columns)))
    return table(("Accuracy, %", "ANN", *(f"T = {t}" for t in columns)), lines)


def readings() -> str:
    """Readings of the open settings by their worst difference to the paper, for each dataset."""
    parts = []
    for dataset in dict.fromkeys(cell.dataset for cell in PAPER.cells):
        cells = [cell for cell in PAPER.cells if cell.dataset == dataset]
        if found := tables.readings_table(dataset, cells, results()):
            parts.append(f"{to_markdown(found)}\n\n{' '.join(found.notes)}")
    return "\n\n".join(parts) or "No reading has been tried at full length yet."


def checksums() -> str:
    """The files of trained weights that were measured."""
    lines = [
        (f"{name}, in the package", number(about["ann_accuracy"]), about["sha256"])
        for name, about in models.catalogue().items()
    ]
    for r in results():
        if r.table.startswith("table") and "sha256" in r.extra and "--pretrained" not in r.command:
            lines.append((_command(r), number(r.ann_accuracy), r.extra["sha256"]))
    return table(("Trained by", "ANN, %", "SHA-256"), lines)


def _command(r: Record) -> str:
    """What trains the network today: with the reading itself where an older record says `dataset`."""
    reading = r.label.removeprefix(READING).replace(", ", ",").replace(" ", "=")
    return r.command.replace("--chosen dataset", f"--chosen {reading}")


def last_bit() -> str:
    """How far training runs differ with the last bit of one weight, and with the seed."""
    return "\n\n".join(_part(read(name), where) for name, where in _LAST_BIT.items())


_LAST_BIT = {"last-bit-cpu": "a CPU", "last-bit-h200": "an H200 with `--deterministic`"}


def _part(record: dict[str, Any], where: str) -> str:
    """One table of `last_bit`."""
    one, again = (r for r in record["rows"] if r["what"] == "repeated")
    assert one["sha256"] == again["sha256"]
    names = {"last bit": "the last bit of one initial weight", "seed": "the seed"}
    columns, lines, counts = tuple(one["accuracy"]), [], set()
    for what, name in names.items():
        runs = [one, *(r for r in record["rows"] if r["what"] == what)]
        found = ([r["accuracy"][t] for r in runs] for t in columns)
        lines.append((name, *(f"{stdev(v):.1f} ({max(v) - min(v):.1f})" for v in found)))
        counts.add(len(runs))
    shown = table(("Training runs that differ in", *(f"T = {t}" for t in columns)), lines)
    return (
        f"{shown}\n\nStandard deviation and, in parentheses, range of the accuracy in points, of "
        f"{counts.pop()} training runs each: `{record['network']}` on {record['data']}, {record['epochs']} "
        f"epochs on {where}. Repeating a run without changes gave identical bits."
    )


def settings() -> str:
    """Accuracies with other settings of the training, on held-out images and on test images."""
    columns = (8, 16, 32, 64, 128)
    found = [r for r in results() if r.profile == "exact" and r.table in ("study", "table 1", "table 2")]
    studied = {(r.model, r.dataset) for r in found if r.table == "study"}
    groups = [*group(r for r in found if r.table == "study"), *group(r for r in found if r.table != "study")]
    lines = []
    for g in sorted(groups, key=lambda g: (g.first.dataset, g.first.model, g.first.table, -g.first.epochs)):
        r = g.first
        if (r.model, r.dataset) in studied:
            changes = r.label.rpartition(": ")[2] or "none"
            images = "held out" if r.table == "study" else "test"
            clips = [clip for r in g.records for clip in r.extra.get("clips", {}).values()]
            threshold = f"{geometric_mean(clips):.2f}" if clips else DASH
            about = (f"{r.model}-{r.dataset}", changes, images, str(r.epochs), str(len(g.records)))
            lines.append((*about, *tables.measured_values(g, columns), threshold))
    steps = (f"T = {t}" for t in columns)
    header = ("Network", "changes", "images", "epochs", "n", "ANN", *steps, "threshold")
    return (
        f"{table(header, lines)}\n\nMeans of n training runs with different seeds, ± their standard "
        "deviation. The threshold is the geometric mean over the sites after training, in units of the "
        "activation. A dash means not measured or not recorded."
    )


def threshold_scale() -> str:
    """Accuracies of trained networks whose thresholds were all multiplied by a factor."""
    record = read("threshold-scale-cpu")
    factors = sorted({row["factor"] for row in record["rows"]})
    networks: dict[tuple[str, int], dict[float, dict[str, float]]] = {}
    for row in record["rows"]:
        networks.setdefault((row["reading"], row["seed"]), {})[row["factor"]] = row["accuracy"]
    lines = [
        (f"{reading}, seed {seed}", *(" / ".join(number(a, 1) for a in found[f].values()) for f in factors))
        for (reading, seed), found in networks.items()
    ]
    steps = [*record["rows"][0]["accuracy"]]
    ranges = (
        (
            f"Change by × {factor:g}",
            *(_range([n[factor][t] - n[1.0][t] for n in networks.values()]) for t in steps),
        )
        for factor in factors
        if factor != 1
    )
    header = (f"Accuracy, %, at T = {', '.join(steps)}", *(f"thresholds × {factor:g}" for factor in factors))
    return (
        f"{table(header, lines)}\n\n{table(('Points', *(f'T = {t}' for t in steps)), ranges)}\n\n"
        f"ResNet-20 on CIFAR-100, {record['images']:,} test images, profile exact; `own` is our first reading"
        " (`benchmarks/threshold_scale.py`)."
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):+.1f} to {max(values):+.1f}".replace("-", "−")


def early_exit() -> str:
    """ResNet-20 on CIFAR-10 in int8: with an exit rule, and without one after as many steps."""
    early = RunRecord.read(EXIT).evaluation
    (whole,) = (
        r
        for r in results()
        if (r.table, r.model, r.dataset, r.profile) == ("table 1", "resnet20", "cifar10", "int8")
    )
    end = early.at(early.steps)
    lines = [
        (
            "margin, loss at most 0.2 points",
            f"{end.mean_steps:.1f}",
            number(end.accuracy),
            f"{end.sop:,.0f}",
        )
    ]
    for t in (round(end.mean_steps), early.steps):
        sop = f"{whole.sop_per_image[t]:,.0f}" if t in whole.sop_per_image else DASH
        lines.append(("no exit rule", str(t), number(whole.accuracy[t]), sop))
    return table(("ResNet-20, CIFAR-10, int8", "mean steps", "accuracy, %", "SOP per image"), lines)


def _accuracies(r: Record, columns: tuple[int, ...]) -> tuple[str, ...]:
    after = (number(r.accuracy[t]) if t in r.accuracy else DASH for t in columns)
    return (number(r.ann_accuracy), *after)


BLOCKS: dict[str, Callable[[], str]] = {
    "seeds": seeds,
    "readings": readings,
    "checksums": checksums,
    "last-bit": last_bit,
    "settings": settings,
    "threshold-scale": threshold_scale,
    "early-exit": early_exit,
}
