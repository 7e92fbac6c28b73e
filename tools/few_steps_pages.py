"""The tables and figures of methods for few steps, from the records."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from rheobase.papers.report import tables
from rheobase.reports import Axis, Curve, Panel, draw_curves, escape_markdown, number, standalone
from tools.few_steps_printed import PRINTED, SOURCES, Printed, Source
from tools.few_steps_records import FewSteps, Row, load_records
from tools.markdown import table
from tools.measured import read

NOTHING = "Nothing has been measured yet."
SHORT, LONG, MOST_LINES = 4, 8, 2
"""The true latencies that rows are compared within, and the lines that a neuron may drive there."""
_DRAWN = ("signed + ftbc", "hmt, 2 members + ftbc", "srp", "cos", "parallel")
"""The rows with a colour in figures, beside that of the plain conversion, which is the first."""
_DOUBTED: dict[Source, str] = {"note": ", third party", "thesis": ", thesis", "memory": ", from memory"}
"""What marks a printed accuracy that is not from a paper or the authors' code."""


@dataclass(frozen=True)
class Line:
    """One row of a network, over all its training runs or of one alone.

    Attributes:
        row: That of the first of them, with the means of events and of what was measured on the images that
            settings were chosen by.
        accuracies: In percent, of each of them.
    """

    row: Row
    accuracies: tuple[float, ...]

    @property
    def accuracy(self) -> float:
        """The mean."""
        return mean(self.accuracies)

    @property
    def shown(self) -> str:
        """The mean, and the standard deviation where there are several training runs."""
        return _spread(self.accuracies)


@dataclass(frozen=True)
class Network:
    """The records of one network.

    Attributes:
        name: The network and its data.
        ann: Accuracy of the ANN in percent, of each training run.
        lines: The rows by method and number of steps.
        records: The records.
    """

    name: str
    ann: tuple[float, ...]
    lines: dict[tuple[str, int], Line]
    records: tuple[FewSteps, ...]


def join(records: Sequence[FewSteps]) -> list[Network]:
    """The records by network; a row counts if all training runs have it, or one alone."""
    found = []
    for name in dict.fromkeys(r.network for r in records):
        own = tuple(r for r in records if r.network == name)
        rows: dict[tuple[str, int], list[Row]] = {}
        for row in (row for r in own for row in r.rows):
            rows.setdefault((row.method, row.steps), []).append(row)
        lines = {}
        for key, runs in ((key, runs) for key, runs in rows.items() if len(runs) in (1, len(own))):
            loss, held_out = (_average(runs, name, len(own)) for name in ("loss", "held_out"))
            events = mean(row.events for row in runs)
            shared = replace(runs[0], events=events, loss=loss, held_out=held_out)
            lines[key] = Line(shared, tuple(row.accuracy for row in runs))
        found.append(Network(name, tuple(r.ann for r in own), lines, own))
    return found


def _average(runs: Sequence[Row], name: str, count: int) -> float | None:
    """The mean of a field over all training runs; None if one has not measured it."""
    known = [getattr(row, name) for row in runs if getattr(row, name) is not None]
    return mean(known) if len(known) == count else None


def show(records: Sequence[FewSteps]) -> str:
    """A table for each network: accuracy by method and number of steps, and what it costs."""
    return "\n\n".join(map(_show_network, join(records))) or NOTHING


def _show_network(network: Network) -> str:
    steps = sorted({t for _, t in network.lines})
    usual = 4 if 4 in steps else steps[-1]
    rows = []
    for method in dict.fromkeys(method for method, _ in network.lines):
        own = {t: line for (name, t), line in network.lines.items() if name == method}
        cells = []
        for t in steps:
            latency = own[t].row.latency if t in own else t
            cells.append(
                (f"{own[t].shown} ({latency:,})" if latency != t else own[t].shown) if t in own else "–"
            )
        some, at = next(iter(own.values())).row, own[usual].row if usual in own else None
        events = "–" if at is None else f"{at.events / 1000:,.0f}"
        rows.append([method, str(some.lines), *cells, events, f"{some.neurons / 1000:,.0f}"])
    head = ["Method", "lines", *(f"T = {t}" for t in steps)]
    head += [f"events, thousands, T = {usual}", "neurons, thousands"]
    (delays,) = {line.row.with_delays - line.row.latency for line in network.lines.values()}
    runs = f", mean ± SD of {len(network.ann)} training runs" if len(network.ann) > 1 else ""
    if any(len(line.accuracies) < len(network.ann) for line in network.lines.values()):
        runs += "; rows without ± are from one run"
    title = f"**{network.name}**, ANN {_spread(network.ann)} %{runs}; delays add {delays} steps"
    return f"{title}:\n\n{table(head, rows)}"


def measured() -> str:
    """All rows of all networks, and two figures."""
    records = load_records()
    if not records:
        return NOTHING
    first = records[0]
    devices = ", ".join(sorted({row.device or r.device for r in records for row in r.rows}))
    profiles = ", ".join(sorted({r.profile for r in records}))
    samples = ", ".join(sorted({f"{r.samples:,}" for r in records}))
    about = (
        f"{samples} test images, {devices}, profile {profiles}; {first.calibration:,} training images for "
        f"calibration and {first.held_out:,} others to select settings. A dash means not measured."
    )
    figures = "\n\n".join(f"![{panel.alt}]({name})" for name, panel in draw(records).items())
    return f"{figures}\n\n{show(records)}\n\n{escape_markdown(about)}"


def printed() -> str:
    """A table for each network: what papers print, ours, and the difference."""
    networks = {network.name: network for network in _of_papers(join(load_records()))}
    shown = [_show_printed(name, networks.get(name)) for name in dict.fromkeys(p.network for p in PRINTED)]
    told = "; ".join(f"*{name}*: {text}" for name, text in SOURCES.items())
    about = f"A dash means not printed. Sources: {told}.{_sum_up(networks)}"
    return "\n\n".join([*shown, about])


def _show_printed(name: str, network: Network | None) -> str:
    own = [p for p in PRINTED if p.network == name]
    steps = sorted({t for p in own for t in p.accuracy})
    rows = []
    for p in own:
        cells = [p.system, p.method or "–", p.source, _count(p), str(p.lines), number(p.ann)]
        rows.append([*cells, *(_beside(p, t, network) for t in steps)])
    head = ["Printed for", "our row", "source", "steps", "lines", "ANN", *(f"T = {t}" for t in steps)]
    ours = f", our ANN {_spread(network.ann)} %" if network else ""
    return f"**{name}**{ours}:\n\n{table(head, rows)}"


def _of_papers(networks: Sequence[Network]) -> list[Network]:
    """The networks that papers print, without shorter training runs of them."""
    known = {p.network for p in PRINTED}
    return [network for network in networks if network.name in known]


def _sum_up(networks: Mapping[str, Network]) -> str:
    """How far the ANNs are from those of the papers, and the chosen SNNs from them."""
    gaps = [
        p.ann - mean(networks[p.network].ann) for p in PRINTED if p.ann is not None and p.network in networks
    ]
    chosen = [(n, line) for n in networks.values() if (line := _choose(n, SHORT)) is not None]
    if not gaps or not chosen:
        return ""
    lost = max(mean(n.ann) - line.accuracy for n, line in chosen)
    return (
        f"\n\nOur ANNs are up to {max(gaps):.1f} points less accurate than those of the papers. Within "
        f"{SHORT} steps and {MOST_LINES} lines, the rows that are selected on training images are at most "
        f"{lost:.2f} points below their ANN."
    )


def _beside(p: Printed, t: int, network: Network | None) -> str:
    """The printed accuracy, ours at the same number of steps, and the difference."""
    theirs = p.accuracy.get(t)
    line = None if network is None or p.method is None else network.lines.get((p.method, t))
    if theirs is None or line is None:
        return number(theirs)
    return f"{number(theirs)} / {line.shown} / {_signed(line.accuracy - theirs)}"


def _count(p: Printed) -> str:
    """What a printed number of steps stands for."""
    return f"{p.pre} + T" if p.pre else "T for each layer" if p.waits else "T"


def best() -> str:
    """For each network of the papers a row within few steps and two lines, not chosen by test images."""
    rows, left_out, profiles = [], [], set()
    for network in _of_papers(join(load_records())):
        if (line := _choose(network, SHORT)) is None:
            continue
        profiles |= {r.profile for r in network.records}
        accuracy, system = _find_printed(network.name, SHORT)
        against = "–" if accuracy is None else f"{number(accuracy)} ({system})"
        cells = [network.name, _spread(network.ann), line.shown, _signed(line.accuracy - mean(network.ann))]
        cells += [line.row.method, str(line.row.latency), str(line.row.lines)]
        rows.append([*cells, f"{line.row.events / 1000:,.0f}", against])
        within = _within(network, SHORT)
        if unknown := sum(each.row.loss is None and each.row.held_out is None for each in within):
            left_out.append((unknown, len(within), network.name))
    if not rows:
        return NOTHING
    never = ""
    if left_out:
        unknown, count, name = max(left_out)
        never = f" Candidates with neither are left out, at most {unknown} of {count} ({name})."
    head = ["Accuracy, %", "ANN", "SNN", "difference", "method", "latency", "lines", "events, thousands"]
    head.append("best printed")
    return (
        f"{table(head, rows)}\n\nAt most {SHORT} steps of true latency and {MOST_LINES} lines per "
        "neuron. Each row has the method with the lowest loss on training images, or the highest accuracy "
        f"on them if no loss was recorded; of equals, the one with fewer events.{never} *Best printed*: the "
        "most accurate of [these papers](docs/few-steps.md#what-papers-print) within the same limits; they "
        f"converted other ANNs. *Thesis*: unpublished. Profile: `{', '.join(sorted(profiles))}`."
    )


def against() -> str:
    """For each network and latency: the row that training images choose, and the best that is printed."""
    rows = []
    for network in join(load_records()):
        for most in (SHORT, LONG):
            line, (accuracy, system) = _choose(network, most), _find_printed(network.name, most)
            if line is not None and accuracy is not None:
                noise = tables.two_errors(line.accuracies, network.records[0].samples)
                cells = [f"{line.shown} ({line.row.method})", f"{number(accuracy)} ({system})"]
                cells.append(tables.difference(line.accuracy, accuracy, noise))
                rows.append([network.name, str(most), *cells])
    if not rows:
        return NOTHING
    head = ["Network", "steps", "ours", "best printed", "difference"]
    return f"{table(head, rows)}\n\n{tables.NOISE}"


def _choose(network: Network, most: int) -> Line | None:
    """The row within a true latency and two lines that is best on the images that settings are chosen by."""
    own = _within(network, most)
    lost = [(line.row.loss, line.row.events, line) for line in own if line.row.loss is not None]
    missed = [(-line.row.held_out, line.row.events, line) for line in own if line.row.held_out is not None]
    return min(lost or missed, key=lambda each: each[:2])[-1] if lost or missed else None


def _within(network: Network, most: int) -> list[Line]:
    """The rows within a true latency and two lines."""
    return [line for line in network.lines.values() if _fits(line.row.latency, line.row.lines, most)]


def _find_printed(network: str, most: int) -> tuple[float | None, str]:
    """The best accuracy that is printed for a network within a true latency and two lines, and for what."""
    found = [
        (accuracy, p.system + _DOUBTED.get(p.source, ""))
        for p in PRINTED
        for t, accuracy in p.accuracy.items()
        if p.network == network and not p.waits and _fits(p.pre + t, p.lines, most)
    ]
    return max(found, default=(None, ""))


def _fits(latency: int, lines: int, most: int) -> bool:
    return latency <= most and lines <= MOST_LINES


def _signed(difference: float) -> str:
    return f"{difference:+.2f}".replace("-", "−")


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def draw(records: Sequence[FewSteps]) -> dict[str, Panel]:
    """Two figures by the names of their files: accuracy over true latency, and over events."""
    networks = join(records)
    if not networks:
        return {}
    figures: dict[str, tuple[str, Axis, Callable[[Row], float]]] = {
        "few-steps-latency.svg": (
            "Accuracy over true latency",
            Axis("true latency, steps"),
            lambda row: row.latency,
        ),
        "few-steps-events.svg": (
            "Accuracy over events",
            Axis("events per image, thousands", scale="tenfold"),
            lambda row: row.events / 1000,
        ),
    }
    found = {}
    for file, (title, axis, x) in figures.items():
        panels = [_draw_network(f"{file[:-4]}-{i}", n, axis, x) for i, n in enumerate(networks)]
        found[file] = _arrange(title, panels)
    return found


def _draw_network(name: str, network: Network, axis: Axis, x: Callable[[Row], float]) -> Panel:
    methods = list(dict.fromkeys(method for method, _ in network.lines))
    coloured = [methods[0], *(method for method in _DRAWN if method in methods)]
    curves = []
    for method in sorted(methods, key=lambda m: -coloured.index(m) if m in coloured else -len(methods)):
        lines = [line for (own, _), line in network.lines.items() if own == method]
        points = {float(x(line.row)): line.accuracy for line in lines}
        if method in coloured:
            curves.append(Curve(method, points, coloured.index(method)))
        else:
            curves.append(Curve(method, points, None, key=""))
    return draw_curves(name, network.name, curves, ann=mean(network.ann), axis=axis)


def _arrange(title: str, panels: Sequence[Panel]) -> Panel:
    """Panels in rows of two, each below its title, as one figure."""
    sizes = [tuple(map(float, re.findall(r'(?:width|height)="([\d.]+)pt"', p.svg)[:2])) for p in panels]
    width, height, room = max(w for w, _ in sizes), max(h for _, h in sizes), 22.0
    places = [((i % 2) * width, (i // 2) * (height + room)) for i in range(len(panels))]
    whole = width * min(2, len(panels)), (height + room) * -(-len(panels) // 2)
    parts = [
        f'<text x="{left + 10:g}" y="{top + 15:g}" style="font: bold 11px system-ui, sans-serif; '
        f'fill: var(--ink, #0b0b0c)">{panel.title}</text>\n'
        + re.sub(r'(?<=\d)pt"', '"', panel.svg, count=2).replace(
            "<svg", f'<svg x="{left:g}" y="{top + room:g}"', 1
        )
        for panel, (left, top) in zip(panels, places, strict=True)
    ]
    frame = f'viewBox="0 0 {whole[0]:g} {whole[1]:g}" xmlns="http://www.w3.org/2000/svg"'
    size = f'width="{whole[0]:g}pt" height="{whole[1]:g}pt"'
    return Panel(title, f"<svg {size} {frame}>\n" + "\n".join(parts) + "\n</svg>", f"{title}, by network")


def levels() -> str:
    """Networks that were trained with several numbers of levels, otherwise alike."""
    record = read("levels-resnet20-cpu")
    runs: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for r in record["rows"]:
        runs.setdefault((r["method"], r["levels"]), []).append(r)
    steps = tuple(record["rows"][0]["accuracy"])
    rows = []
    for (method, count), own in runs.items():
        found = [[r["accuracy"][t] for r in own] if t in own[0]["accuracy"] else [] for t in steps]
        cells = (" / ".join(map(number, some)) or "–" for some in found)
        rows.append([method, str(count), " / ".join(number(r["ann"]) for r in own), *cells])
    images, tested = record["rows"][0]["images"], record["rows"][0]["tested"]
    seeds = " / ".join(f"seed {seed}" for seed in sorted({r["seed"] for r in record["rows"]}))
    about = (
        f"`{record['network']}` on {record['data']}, {record['epochs']} epochs over {images:,} training "
        f"images on a CPU, thresholds that start at {record['start']:g}, {tested:,} test images "
        "(`benchmarks/levels.py`)."
    )
    head = [f"Accuracy, %, {seeds}", "levels", "ANN", *(f"T = {t}" for t in steps)]
    return f"{table(head, rows)}\n\n{about}"


def tuned() -> str:
    """A trained network of the package before and after `fine_tune` with its defaults."""
    record = read("fine-tuning-resnet20-cifar100-cpu")
    rows = [
        [
            r["method"],
            f"T = {r['steps']}",
            number(r["before"]),
            number(r["after"]),
            f"{r['seconds'] / 60:.0f}",
        ]
        for r in record["rows"]
    ]
    about = (
        f"`{record['model']}`, one epoch over {record['images']:,} training images, measured on "
        f"{record['test images']:,} test images (`benchmarks/fine_tuning.py`)."
    )
    head = ["Accuracy, %", "steps", "before", "after", "minutes, one thread of a CPU"]
    return f"{table(head, rows)}\n\n{about}"


def pictures() -> dict[str, str]:
    """The figures as SVG files by their names; none without records."""
    return {name: standalone(panel) for name, panel in draw(load_records()).items()}


BLOCKS: dict[str, Callable[[], str]] = {
    "few-steps": measured,
    "few-steps-against": against,
    "few-steps-levels": levels,
    "few-steps-tuned": tuned,
    "few-steps-printed": printed,
}
if load_records():
    BLOCKS["few-steps-best"] = best  # in the README, which shows no empty table
