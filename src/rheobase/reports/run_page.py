"""The page about one evaluated network, and the parts that other pages share with it."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from rheobase.analysis import Evaluation
from rheobase.reports.curves import Axis, Curve, draw_curves
from rheobase.reports.drawing import Panel
from rheobase.reports.pages import Section, standalone, write_page
from rheobase.reports.run_record import RunRecord
from rheobase.reports.site_figures import draw_bars, draw_counts, draw_histograms, draw_marks
from rheobase.reports.tables import DASH, Line, Table, microjoules, number

ENERGY_AXIS = Axis("energy per image, µJ", scale="tenfold")
_ENERGIES = 100


def evaluation_page(record: RunRecord, out: Path | str) -> Path:
    """Write one page about a converted network.

    The page is self-contained: it has no script and makes no request. Equal records give equal bytes.

    Args:
        record: The record of the run.
        out: The file to write.

    Returns:
        The file's path.
    """
    return write_run_page(record, out, run_facts(record), run_sections(record))


def write_run_page(
    record: RunRecord, out: Path | str, facts: Mapping[str, str], sections: Iterable[Section | None]
) -> Path:
    """Write a page about a run, with its settings at the end."""
    return write_page(
        Path(out),
        "run.html.j2",
        title=record.title,
        lead=f"Converted by {record.method}, start {record.initial}.",
        facts=facts,
        sections=[section for section in sections if section is not None],
        settings=settings_of(record),
    )


def run_facts(record: RunRecord) -> dict[str, str]:
    """The headline: accuracy and cost at the end."""
    found = record.evaluation
    end = found.at(found.steps)
    length = f"at most {found.steps}" if record.exit else str(found.steps)
    facts = {f"accuracy after {length} steps": f"{number(end.accuracy)} %"}
    if record.ann_accuracy is not None:
        facts["accuracy of the ANN"] = f"{number(record.ann_accuracy)} %"
    if record.exit:
        facts["mean steps per image"] = f"{end.mean_steps:.1f}"
    facts |= latency_facts(record)
    facts |= {"spikes per image": f"{end.spikes:,.0f}", "energy per image": f"{microjoules(end.joules)} µJ"}
    return facts | {"images": f"{found.samples:,}"}


def latency_facts(record: RunRecord) -> dict[str, str]:
    """The true latency and the lines, which old records do not hold."""
    timing, most = record.evaluation.timing, "at most " if record.exit else ""
    if timing is None:
        return {}
    latency = f"{most}{timing.brief}, {timing.with_delays} with delays"
    return {"true latency": latency, "lines per neuron": str(timing.lines)}


def run_sections(record: RunRecord) -> list[Section | None]:
    """What every page about a run shows: accuracy, exits, sites, and what each call became."""
    return [_accuracy(record), _exits(record), _sites(record), _coverage(record)]


def settings_of(record: RunRecord) -> dict[str, str]:
    """How the run was done."""
    found = record.evaluation
    settings = {
        "data": f"{record.dataset or DASH}, {found.samples:,} images",
        "method": record.method,
        "start": record.initial,
        "coding": record.coding.removesuffix("()"),
        # In one line: a method may have a setting called data, or start.
        "settings": ", ".join(f"{name}={value}" for name, value in record.settings.items()) or DASH,
        "early exit": _brief(record.exit) or DASH,
        "energy": f"convention “{found.convention}”",
        "latency and wires": "; ".join(found.costs) or DASH,
        "arithmetic": f"{found.profile}, {found.backend} kernel",
        "evaluation took": f"{found.seconds:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    return settings | ({"command": record.command} if record.command else {})


def accuracy_figure(evaluations: Mapping[str, Evaluation], ann: float | None) -> str:
    """Accuracy over time steps as an SVG file.

    Args:
        evaluations: The evaluations by their names, the most important first.
        ann: Accuracy of the ANN, in percent.
    """
    return standalone(_draw_accuracy(evaluations, ann))


def accuracy_by_energy(found: Evaluation) -> dict[float, float]:
    """Accuracy by energy per image in µJ, without the first steps, in which almost nothing fires."""
    least = found.joules[-1] / _ENERGIES
    points = zip(found.joules, found.accuracy, strict=True)
    return {1e6 * joules: accuracy for joules, accuracy in points if accuracy is not None and joules > least}


def choose_steps(longest: int) -> list[int]:
    """The steps shown in a table: powers of two, and the last."""
    return sorted({2**i for i in range(longest.bit_length())} | {longest})


def _draw_accuracy(evaluations: Mapping[str, Evaluation], ann: float | None) -> Panel:
    curves = [
        Curve(name, {float(t): a for t, a in enumerate(found.accuracy, 1) if a is not None}, i)
        for i, (name, found) in enumerate(evaluations.items())
    ]
    return draw_curves("accuracy", "Accuracy after each time step", curves[::-1], ann=ann)


def _accuracy(record: RunRecord) -> Section:
    found, name = record.evaluation, f"start {record.initial}"
    panels = [_draw_accuracy({name: found}, record.ann_accuracy)]
    if any(found.joules):
        curves = [Curve(name, accuracy_by_energy(found), 0)]
        if record.ann_accuracy is not None and record.ann_joules:
            curves.append(Curve("ANN", {1e6 * record.ann_joules: record.ann_accuracy}, None, marked=True))
        panels.append(draw_curves("energy", "Accuracy over energy", curves, axis=ENERGY_AXIS))
    return Section("Accuracy", panels=tuple(panels), tables=(_cost_table(found),))


def _cost_table(found: Evaluation) -> Table:
    lines = []
    for step in map(found.at, choose_steps(found.steps)):
        values = (
            number(step.accuracy),
            f"{step.spikes:,.0f}",
            number(100 * step.rate, 1),
            f"{step.sop:,.0f}",
            f"{step.mac:,.0f}",
            microjoules(step.joules),
        )
        lines.append(Line(str(step.steps), values))
    header = ("Steps", "Accuracy, %", "Spikes", "Rate, %", "SOP", "MAC", "Energy, µJ")
    note = (
        "Per image, up to that step. SOP: additions caused by spikes. MAC: multiplications by analog values, "
        f"mostly the image. Energy by the convention “{found.convention}”."
    )
    return Table("Spikes, operations and energy", header, tuple(lines), (note,))


def _exits(record: RunRecord) -> Section | None:
    if not record.exit:
        return None
    found = record.evaluation
    mean = found.mean_steps[-1]
    text = (
        f"By the rule {_brief(record.exit)} an image leaves as soon as its answer is safe: on average after "
        f"{mean:.1f} of {found.steps} steps ({100 * mean / found.steps:.0f} %). Images that never left are "
        "counted at the last step."
    )
    points = {t: a for t, a in zip(found.mean_steps, found.accuracy, strict=True) if a is not None}
    curve = Curve(f"start {record.initial}", points, 0)
    axis = Axis("mean steps per image", scale="even")
    panels = (
        draw_curves("latency", "Accuracy over mean steps", [curve], ann=record.ann_accuracy, axis=axis),
        draw_counts("exits", "When images leave", found.exits, "images"),
    )
    return Section("Early exit", (text,), panels)


def _sites(record: RunRecord) -> Section:
    found = record.evaluation
    mean = found.mean_steps[-1]
    rates = {site: 100 * n[-1] / found.neurons[site] / mean for site, n in found.spikes.items()}
    panels = [draw_bars("rates", "Firing rates", rates, "spikes per neuron in 100 steps")]
    if any(record.thresholds.values()):
        panels.append(draw_marks("thresholds", "Thresholds of the channels", record.thresholds, "threshold"))
    if any(histogram.top for histogram in record.activations.values()):
        title = "Activations of the ANN, and thresholds"
        panels.append(draw_histograms("activations", title, record.activations))
    lines = []
    for site, rate in rates.items():
        values = (f"{found.neurons[site]:,}", f"{found.spikes[site][-1]:,.1f}", f"{rate:.2f}")
        lines.append(Line(site, (*values, _span(record.thresholds.get(site, [])))))
    table = Table("Sites", ("Site", "Neurons", "Spikes per image", "Rate, %", "Threshold"), tuple(lines))
    text = "Histograms count activations on a logarithmic scale, without those that are zero."
    texts = (text,) if record.activations else ()
    return Section("Sites", texts, tuple(panels), (table,), folded=True)


def _coverage(record: RunRecord) -> Section | None:
    if record.coverage is None:
        return None
    lines = []
    for line in record.coverage.lines:
        amounts = (f"{n:,}" if n else "" for n in (line.neurons, line.operations))
        lines.append(Line(line.name, (line.call, line.becomes, *amounts)))
    header = ("Where", "Call", "Became", "Neurons", "Multiplications")
    table = Table("What each call became", header, tuple(lines))
    return Section("Coverage", tables=(table,), words=True, folded=True)


def _brief(text: str) -> str:
    """A rule with its numbers rounded to four digits."""
    return re.sub(r"\d+\.\d{4,}", lambda found: f"{float(found[0]):.4g}", text)


def _span(values: list[float]) -> str:
    if not values:
        return DASH
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
