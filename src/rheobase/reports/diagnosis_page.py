"""The page about a diagnosis: where accuracy is lost, what helps, and what was measured."""

from collections.abc import Sequence
from pathlib import Path

from rheobase.analysis import NEURONS, PARTS, Diagnosis, SiteDiagnosis, Trace
from rheobase.reports.curves import Axis, Curve, draw_curves, draw_heat_map
from rheobase.reports.drawing import end_of
from rheobase.reports.pages import Picture, Section
from rheobase.reports.run_page import choose_steps, latency_facts, run_sections, write_run_page
from rheobase.reports.run_record import RunRecord
from rheobase.reports.site_figures import ROWS, draw_marks, draw_stacks, largest
from rheobase.reports.tables import Line, Table, number
from rheobase.reports.trace_figures import draw_membranes, draw_raster, embed

_COLOURED = 4
_LONGEST_KEY = 22


def diagnosis_page(record: RunRecord, out: Path | str) -> Path:
    """Write one page about a diagnosis.

    Args:
        record: The record of the run, with its diagnosis.
        out: The file to write.

    Returns:
        The file's path.

    Raises:
        ValueError: The record holds no diagnosis.
    """
    found = record.diagnosis
    if found is None:
        raise ValueError(
            f"the record “{record.title}” holds no diagnosis: make one with record_diagnosis, or use "
            "evaluation_page"
        )
    sections = [
        _findings(found),
        _remedies(found),
        _errors(found),
        _delays(found),
        *(_trace(i, sample) for i, sample in enumerate(record.traces)),
        _starts(record),
        *run_sections(record),
    ]
    facts = {
        f"{found.measure} after {found.steps} steps": f"{number(found.snn)} %",
        f"{found.measure} of the ANN": f"{number(found.ann)} %",
        **latency_facts(record),
        "inputs": f"{found.samples:,}",
    }
    return write_run_page(record, out, facts, sections)


def _findings(found: Diagnosis) -> Section:
    parts = {name: {_words(part): site.percent(part) for part in PARTS} for name, site in found.sites.items()}
    panel = draw_stacks("errors", "Error of each site by its parts", parts, "% of the squared activation")
    some, none = "Worst first, each with the remedy that gained most.", "Nothing stands out."
    points = tuple(map(str, found.findings))
    return Section("Findings", (some if points else none,), (panel,), points=points)


def _remedies(found: Diagnosis) -> Section | None:
    if not found.remedies and not found.untried:
        return None
    lines = [
        Line(r.what, (str(r.steps), number(r.before), number(r.after), f"{r.gain:+.2f}".replace("-", "−")))
        for r in found.remedies
    ]
    header = ("Remedy", "Steps", "Before, %", "After, %", "Gain, points")
    note = "Each was tried alone, on the data of the diagnosis. Evaluate the one you choose on other data."
    stopped = "Interrupted; these were not tried:" if found.untried else ""
    return Section(
        "Remedies",
        (stopped,) if stopped else (),
        tables=(Table("Accuracy", header, tuple(lines), (note,)),) if lines else (),
        points=tuple(found.untried),
    )


def _errors(found: Diagnosis) -> Section:
    sites = found.sites
    text = (
        f"The squared difference between a site's mean output over {found.steps} steps and its activation, "
        "in percent of the squared activation. Clipping: activations above the threshold. Quantisation: a "
        "neuron fires an integer number of spikes. The rest comes from changed and uneven currents: "
        "inherited from earlier sites, or made here. A negative part compensates another."
    )
    panels = []
    biases = {name: _channel_biases(site) for name, site in sites.items()}
    if any(biases.values()):
        panels.append(
            draw_marks("biases", "Bias of each channel", biases, "mean error, % of the root mean square")
        )
    return Section(
        "Errors",
        (text,),
        tuple(panels),
        (_error_table(list(sites.values())),),
    )


def _delays(found: Diagnosis) -> Section:
    last = {name: site.waiting[-1] for name, site in found.sites.items()}
    marked = largest(last, _COLOURED)
    curves = []
    for name in largest(last, ROWS):
        site = found.sites[name]
        points = {float(t): 100 * share for t, share in enumerate(site.waiting, 1)}
        colour = marked.index(name) if name in marked else None
        curves.append(Curve(name, points, colour, key=end_of(name, _LONGEST_KEY) if name in marked else ""))
    curves.sort(key=lambda curve: curve.colour is not None)
    axis = Axis(y="not fired yet, %", from_zero=True)
    text = (
        "The share of the neurons with a positive activation that have not fired yet. Until they fire, later "
        "layers do not see them."
    )
    return Section(
        "Delays",
        (text,),
        (draw_curves("delays", "Waiting for a first spike", curves, axis=axis),),
        folded=True,
    )


def _starts(record: RunRecord) -> Section | None:
    if not record.starts:
        return None
    steps = len(next(iter(record.starts.values())))
    columns = {
        start: {t: a for t, a in enumerate(found, 1) if a is not None}
        for start, found in record.starts.items()
    }
    moments = choose_steps(steps)
    lines = [Line(f"{s:g}", tuple(number(columns[s].get(t)) for t in moments)) for s in sorted(columns)]
    table = Table("Accuracy, %", ("Start", *(f"T={t}" for t in moments)), tuple(lines))
    text = "All membranes start at the same share of their threshold; on the data of the diagnosis."
    panel = draw_heat_map("starts", "Accuracy by start and step", columns, steps)
    return Section("Starts", (text,), (panel,), (table,), folded=True)


def _trace(i: int, found: Trace) -> Section:
    """One sample: its image, and what single neurons do."""
    answers = [answer for answer in found.answers if answer]
    settled = next(
        t for t in range(len(found.answers), 0, -1) if t == 1 or found.answers[t - 2] != answers[-1]
    )
    label = f"Its class is {found.label}. " if found.label else ""
    texts = [
        f"{label}The answer after {len(found.answers)} steps is {answers[-1]}, the same since step {settled}."
    ]
    if i == 0:
        texts.append(
            f"Spikes of up to {NEURONS} neurons of a site, evenly chosen from the most to the least active. "
            "Membranes of the median (thick) and the least active of these. Dotted line: threshold. Point: "
            "spike."
        )
    panels = [draw_raster(f"raster{i}", "Spikes", found)]
    if any(site.membranes for site in found.sites.values()):
        panels.append(draw_membranes(f"membranes{i}", "Membranes", found))
    picture = Picture(embed(found.picture), f"Sample {found.sample}") if found.picture else None
    return Section(f"Sample {found.sample}", tuple(texts), tuple(panels), picture=picture, folded=i > 0)


def _channel_biases(site: SiteDiagnosis) -> list[float]:
    return [100 * bias / site.power**0.5 for bias in site.error.channels] if site.power else []


def _error_table(sites: Sequence[SiteDiagnosis]) -> Table:
    lines = []
    for site in sites:
        values = (
            number(100 * site.relative(), 1),
            number(100 * site.relative_bias, 1),
            *(number(100 * getattr(site, part).share, 0) for part in PARTS),
            number(site.correlation, 3),
            *(number(100 * v, 1) for v in (site.waiting[-1], site.silent, site.saturated, site.dead)),
        )
        lines.append(Line(site.name, values))
    header = (
        "Site", "Error", "Bias", *(_words(part).capitalize() for part in PARTS), "Correlation",
        "Not fired yet", "Silent", "Saturated", "Dead",
    )  # fmt: skip
    notes = (
        "Error and bias in percent of the activation's root mean square; parts in percent of the squared "
        "error; correlation is that of mean outputs with activations.",
        "In percent. Not fired yet: of active neurons on single images. Silent: neurons that should fire on "
        "some image and fire on none. Saturated: a spike at every step. Dead: channels that cannot fire.",
    )
    return Table("Every site", header, tuple(lines), notes)


def _words(part: str) -> str:
    return part.replace("_", " ")
