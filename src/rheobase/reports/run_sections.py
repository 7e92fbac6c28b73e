"""What a page says about one run, section by section."""

import re

from rheobase.reports.evaluations import cost_table, draw_accuracy, draw_energy, draw_latency
from rheobase.reports.pages import Section
from rheobase.reports.run_record import RunRecord
from rheobase.reports.site_figures import draw_bars, draw_counts, draw_histograms, draw_marks
from rheobase.reports.tables import DASH, Line, Table

FOLDED_FROM = 25


def accuracy_section(record: RunRecord) -> Section:
    """Accuracy over steps and over energy."""
    found = {f"start {record.initial}": record.evaluation}
    panels = [draw_accuracy(found, record.ann_accuracy)]
    if any(record.evaluation.joules):
        panels.append(draw_energy(found, record.ann_accuracy, record.ann_joules))
    return Section("Accuracy", panels=tuple(panels), tables=(cost_table(found),))


def exit_section(record: RunRecord) -> Section | None:
    """After which steps images left, where a rule let them."""
    if not record.exit:
        return None
    found = record.evaluation
    mean, share = found.latency[-1], 100 * found.latency[-1] / found.steps
    text = (
        f"By the rule {_brief(record.exit)} an image leaves when its answer is safe: on average after "
        f"{mean:.1f} of {found.steps} steps, {share:.0f} % of the way. Those that never left are counted at "
        "the last step."
    )
    panels = (
        draw_latency({f"start {record.initial}": found}, record.ann_accuracy),
        draw_counts("exits", "When images leave", found.exits, "images"),
    )
    return Section("Early exit", (text,), panels)


def sites_section(record: RunRecord) -> Section:
    """How much each site fires, its thresholds, and how large its activations are."""
    found = record.evaluation
    rates = {site: 100 * n[-1] / found.neurons[site] / found.latency[-1] for site, n in found.spikes.items()}
    panels = [draw_bars("rates", "Firing rates", rates, "spikes of a neuron in 100 steps")]
    if any(record.thresholds.values()):
        panels.append(draw_marks("thresholds", "Thresholds of the channels", record.thresholds, "threshold"))
    if any(histogram.top for histogram in record.activations.values()):
        title = "Activations of the ordinary network, and thresholds"
        panels.append(draw_histograms("activations", title, record.activations))
    lines = []
    for site, rate in rates.items():
        values = (f"{found.neurons[site]:,}", f"{found.spikes[site][-1]:,.1f}", f"{rate:.2f}")
        lines.append(Line(site, (*values, _span(record.thresholds.get(site, [])))))
    header = ("Site", "Neurons", "Spikes of an image", "Rate, %", "Threshold")
    texts = (
        ("Histograms count activations on a logarithmic scale; those that are zero are left out.",)
        if record.activations
        else ()
    )
    table = Table("Sites", header, tuple(lines))
    return Section("Sites", texts, tuple(panels), (table,), folded=len(lines) >= FOLDED_FROM)


def coverage_section(record: RunRecord) -> Section | None:
    """What each call of the model became."""
    if record.coverage is None:
        return None
    lines = []
    for line in record.coverage.lines:
        amounts = (f"{n:,}" if n else "" for n in (line.neurons, line.operations))
        lines.append(Line(line.name, (line.call, line.becomes, *amounts)))
    table = Table(
        "What each call became", ("Where", "Call", "Became", "Neurons", "Multiplications"), tuple(lines)
    )
    return Section("Coverage", tables=(table,), words=True, folded=len(lines) >= FOLDED_FROM)


def settings_of(record: RunRecord) -> dict[str, str]:
    """How the run was done."""
    found = record.evaluation
    told = {
        "data": f"{record.dataset or DASH}, {found.samples:,} images",
        "method": record.method,
        "start": record.initial,
        "coding": record.coding.removesuffix("()"),
        # In one line of their own: a method may have a setting called data, or start.
        "settings": ", ".join(f"{name}={value}" for name, value in record.settings.items()) or DASH,
        "early exit": _brief(record.exit) or DASH,
        "energy": f"convention “{found.convention}”",
        "arithmetic": f"{found.profile}, {found.backend} kernel",
        "evaluation took": f"{found.seconds:.1f} s",
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
    }
    return told | ({"command": record.command} if record.command else {})


def _brief(text: str) -> str:
    """A rule without the digits that nobody reads."""
    return re.sub(r"\d+\.\d{4,}", lambda found: f"{float(found[0]):.4g}", text)


def _span(values: list[float]) -> str:
    if not values:
        return DASH
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
