"""The generated blocks of the README and of pages on methods and the paper, and the README's figure."""

import re
from collections.abc import Callable, Sequence

from rheobase import methods, papers
from rheobase.analysis import PAPER as ENERGY
from rheobase.analysis import Comparison
from rheobase.papers.candidates import READING
from rheobase.papers.paper import Cell
from rheobase.papers.report import tables
from rheobase.papers.report.groups import Group
from rheobase.reports import (
    RunRecord,
    accuracy_figure,
    escape_markdown,
    gains_table,
    number,
    to_markdown,
)
from tools.markdown import table
from tools.measured import RECORDS, results

PAPER = papers.get("opi2022")
_IN_WORDS = {"batch_size": "a batch size of {}", "decayed layers": "no weight decay on batch norms"}
"""Readings of open settings for readers who do not know the names."""
_CODE = re.compile(r"\\`(.*?)\\`")  # as it comes out of escaping


def _headlines() -> list[tuple[Cell, Group]]:
    """The networks that were measured, and for each the result to compare with the paper."""
    found = ((cell, tables.headline(PAPER, cell, results())) for cell in PAPER.cells)
    return [(cell, g) for cell, g in found if g is not None]


def _list(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def accuracy() -> str:
    """Every network trained as in the paper: the paper's accuracy, ours, and the difference."""
    steps, lines = (8, 16, 32, 64), []
    chosen: dict[str, list[str]] = {}
    for cell, g in _headlines():
        if g.first.label:
            chosen.setdefault(g.first.label.removeprefix(READING), []).append(cell.title)
        columns = zip(
            tables.printed_values(cell.own, steps, 1),
            tables.measured_values(g, steps, 1),
            tables.differences(g, cell.own, steps, 1),
            strict=True,
        )
        lines.append((cell.title, *(" / ".join(values) for values in columns)))
    notes = [tables.NOISE]
    for reading, titles in chosen.items():
        text = reading.replace(", ", ",").replace(" ", "=")  # as `--chosen` takes it
        notes.append(
            f"For {_list_titles(titles)}, training settings that the paper leaves open were [selected on "
            "held-out images](docs/reproduce.md#settings-that-the-paper-leaves-open): "
            f"{_say(reading)} (`{text}`)."
        )
    header = ("Accuracy, %: paper / ours / difference", "ANN", *(f"T = {t}" for t in steps))
    return f"{table(header, lines)}\n\n{' '.join(notes)}"


def _list_titles(titles: Sequence[str]) -> str:
    """Networks by their data: "VGG-16 and ResNet-20 on CIFAR-10"."""
    found: dict[str, list[str]] = {}
    for title in titles:
        network, _, data = title.rpartition(" on ")
        found.setdefault(data, []).append(network)
    return _list([f"{_list(networks)} on {data}" for data, networks in found.items()])


def _say(reading: str) -> str:
    """A reading in words, as far as there are some."""
    words = []
    for change in reading.split(", "):
        name, _, value = change.partition(" ")
        words.append(_IN_WORDS.get(change) or _IN_WORDS.get(name, f"{name} {{}}").format(value))
    return _list(words)


def _demo() -> dict[str, RunRecord]:
    """The networks of the demonstration by the names it gives them."""
    files = {"start zero": "zero", "start half": "half", "sigma-delta": "sigma-delta"}
    return {name: RunRecord.read(RECORDS / f"demo-{file}.json") for name, file in files.items()}


def demo() -> str:
    """The demonstration: accuracy from two starts and by sigma-delta, and what it costs."""
    records, steps = _demo(), (1, 2, 4, 8, 16, 32)
    lines = []
    for name, r in records.items():
        end = r.evaluation.at(steps[-1])
        accuracies = (number(r.evaluation.at(t).accuracy, 1) for t in steps)
        timing = r.evaluation.timing
        assert timing is not None
        lines.append((name, *accuracies, f"{end.sop:,.0f}", str(timing.lines)))
    header = ("Accuracy, %", *(f"T={t}" for t in steps), "SOP at T=32", "Lines")
    first, exact = records["start zero"], records["sigma-delta"].evaluation
    assert exact.timing is not None
    operations = round((first.ann_joules or 0.0) / ENERGY.mac)
    return (
        f"{table(header, lines)}\n\nThe ANN has {number(first.ann_accuracy)} % accuracy on the test "
        f"images and needs {operations:,} operations per image. A synaptic operation (SOP) is the addition "
        "that a spike causes at a synapse. Lines are the binary wires of a neuron: 1 for spikes of 0 and 1, "
        "2 for each size of a signed spike. `sigma-delta` stops firing after at most "
        f"{exact.timing.total} steps; its output then equals that of the quantised ANN."
    )


def draw_demo() -> str:
    """The README's figure, an SVG file."""
    records = _demo()
    evaluations = {n: records[n].evaluation for n in ("start half", "start zero", "sigma-delta")}
    return accuracy_figure(evaluations, records["start zero"].ann_accuracy)


def list_methods() -> str:
    """Every method: its first sentence, and what it needs."""
    lines = []
    for name in methods.names():
        method = methods.find(name).example()
        corrects = isinstance(method, methods.Correction)
        measures = (method.adds if isinstance(method, methods.Correction) else method.cost) != "reads"
        needs = {"another method to correct": corrects, "its own training": method.needs_training}
        data = "" if method.needs_calibration else " unless all activations are quantised or bounded"
        needs |= {f"calibration data{data}": measures}
        needed = " and ".join(need for need, so in needs.items() if so) or "nothing but the network"
        about = escape_markdown((type(method).__doc__ or "").split("\n")[0])
        about = _CODE.sub(lambda code: "`" + code[1].replace("\\", "") + "`", about)
        lines.append(f"- `{name}`: {about} Needs {needed}.")
    return "\n".join(lines)


def comparison() -> str:
    """Every method on the digits, from both starts."""
    found = gains_table(Comparison.read(RECORDS / "compare.json"))
    return f"{to_markdown(found)}\n\n{' '.join(found.notes)}"


def paper_table() -> str:
    """The accuracies that the paper prints, and ours."""
    headlines, columns, lines = _headlines(), tables.columns_of(PAPER), []
    for cell, g in headlines:
        lines.append((f"{cell.title}, paper", *tables.printed_values(cell.own, columns)))
        lines.append((tables.name_line(g), *tables.measured_values(g, columns)))
        lines.append(("difference", *tables.differences(g, cell.own, columns)))
    sources = escape_markdown(_sources([g for _, g in headlines]))
    return (
        f"{table(('Accuracy, %', 'ANN', *columns.values()), lines)}\n\n"
        f"{tables.NOISE} {sources}\n\n{_count_lower(headlines)}"
    )


def _count_lower(headlines: Sequence[tuple[Cell, Group]]) -> str:
    """Which of the paper's values are not reached within the noise."""
    count = sum(1 + sum(cell.own.accuracy.get(t) is not None for t in PAPER.steps) for cell, _ in headlines)
    lower = {cell.title: tables.find_lower(g, cell.own, PAPER.steps) for cell, g in headlines}
    missed = sum(map(len, lower.values()))
    text = f"Of the paper's {count} values, {count - missed} are reached or exceeded within the noise."
    if not missed:
        return text
    places = (f"{title} ({', '.join(where)})" for title, where in lower.items() if where)
    return f"{text} Below it by more than the noise: {'; '.join(places)}."


def _sources(shown: Sequence[Group]) -> str:
    """How the measured lines of the table were made."""
    records = [r for g in shown for r in g.records]
    epochs, images, profiles, devices, commits, dates = (
        ", ".join(sorted(set(found)))
        for found in zip(
            *((str(r.epochs), f"{r.images:,}", r.profile, r.device, r.source, r.date) for r in records),
            strict=True,
        )
    )
    return (
        f"Measured: {epochs} epochs, {images} test images, profile {profiles}, {devices}, commits {commits}, "
        f"{dates}. Each record says which command wrote it."
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "accuracy": accuracy,
    "demo": demo,
    "methods": list_methods,
    "compare": comparison,
    "paper-table": paper_table,
}
