"""What a page says about a diagnosis, section by section."""

from collections.abc import Sequence

from rheobase.analysis import NEURONS, PARTS, Diagnosis, SiteDiagnosis, Trace
from rheobase.reports.curves import Axis, Curve, draw_curves, draw_heat_map
from rheobase.reports.drawing import end_of
from rheobase.reports.evaluations import choose_steps
from rheobase.reports.pages import Picture, Section
from rheobase.reports.run_record import RunRecord
from rheobase.reports.run_sections import FOLDED_FROM
from rheobase.reports.site_figures import ROWS, draw_marks, draw_stacks, largest
from rheobase.reports.tables import Line, Table, number
from rheobase.reports.trace_figures import draw_membranes, draw_raster, embed

_COLOURED = 4
_LONGEST_KEY = 22


def findings_section(found: Diagnosis) -> Section:
    """What costs accuracy, in words."""
    if not found.findings:
        return Section("Findings", ("Nothing stands out.",))
    text = "Worst first, each with what gained most against it."
    return Section("Findings", (text,), points=tuple(map(str, found.findings)))


def remedies_section(found: Diagnosis) -> Section | None:
    """What was tried, and what it gained."""
    if not found.remedies and not found.untried:
        return None
    lines = [
        Line(r.what, (str(r.steps), number(r.before), number(r.after), f"{r.gain:+.2f}".replace("-", "−")))
        for r in found.remedies
    ]
    header = ("What was tried", "Steps", "Before, %", "After, %", "Gain, points")
    note = "Each alone, on the data of the diagnosis: measure a choice made here on other data."
    stopped = "Stopped by hand; these were not tried any more:" if found.untried else ""
    return Section(
        "Remedies",
        (stopped,) if stopped else (),
        tables=(Table("Percent right", header, tuple(lines), (note,)),) if lines else (),
        points=tuple(found.untried),
    )


def errors_section(found: Diagnosis) -> Section:
    """The conversion error of each site by its parts."""
    sites = found.sites
    text = (
        f"The squared difference between a site's mean output over {found.steps} steps and its activation, "
        "in percent of the squared activation. Clipping is what lies above the threshold; quantisation what "
        "is lost by counting whole spikes; the rest comes of changed and uneven currents: inherited from "
        "earlier sites, or made here. A part to the left of zero undoes another."
    )
    stacks = {name: {_words(part): share_of(site, part) for part in PARTS} for name, site in sites.items()}
    panels = [draw_stacks("errors", "Error of each site by its parts", stacks, "% of the squared activation")]
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
        folded=len(sites) >= FOLDED_FROM,
    )


def delays_section(found: Diagnosis) -> Section:
    """How many neurons still wait for their first spike."""
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
        "Of the neurons with a positive activation, how many have not fired yet: until they do, what lies "
        "behind them answers without them."
    )
    return Section(
        "Delays", (text,), (draw_curves("delays", "Waiting for a first spike", curves, axis=axis),)
    )


def starts_section(record: RunRecord) -> Section | None:
    """Accuracy by start and step."""
    if not record.starts:
        return None
    steps = len(next(iter(record.starts.values())))
    columns = {start: dict(enumerate(found, 1)) for start, found in record.starts.items()}
    moments = choose_steps(steps)
    lines = [Line(f"{s:g}", tuple(number(columns[s][t]) for t in moments)) for s in sorted(columns)]
    table = Table("Percent right", ("Start", *(f"T={t}" for t in moments)), tuple(lines))
    text = "Every membrane starts at the same share of its threshold; measured on the data of the diagnosis."
    panel = draw_heat_map("starts", "Accuracy by start and step", columns, steps)
    return Section("Starts", (text,), (panel,), (table,))


def trace_section(number: int, found: Trace) -> Section:
    """One sample: its image, and what single neurons do on it."""
    answers = [answer for answer in found.answers if answer]
    settled = next(
        t for t in range(len(found.answers), 0, -1) if t == 1 or found.answers[t - 2] != answers[-1]
    )
    label = f"Its class is {found.label}. " if found.label else ""
    texts = [
        f"{label}The answer after {len(found.answers)} steps is {answers[-1]}, the same since step {settled}."
    ]
    if not number:
        texts.append(
            f"Spikes of up to {NEURONS} neurons of a site, evenly from the busiest down to the quietest that "
            "fired. Membranes of the middle one of these (thick) and the quietest; a dotted line is the "
            "threshold, a point a spike."
        )
    panels = [draw_raster(f"raster{number}", "Spikes", found)]
    if any(site.membranes for site in found.sites.values()):
        panels.append(draw_membranes(f"membranes{number}", "Membranes", found))
    picture = Picture(embed(found.picture), f"Sample {found.sample}") if found.picture else None
    return Section(f"Sample {found.sample}", tuple(texts), tuple(panels), picture=picture)


def share_of(site: SiteDiagnosis, part: str) -> float:
    """A part's share of the squared error, in percent of the squared activation."""
    share: float = getattr(site, part).share
    return 100 * share * site.relative() ** 2


def _channel_biases(site: SiteDiagnosis) -> list[float]:
    return [100 * bias / site.power**0.5 for bias in site.error.channels] if site.power else []


def _error_table(sites: Sequence[SiteDiagnosis]) -> Table:
    lines = []
    for site in sites:
        bias = 100 * site.error.bias / site.power**0.5 if site.power else 0.0
        values = (
            number(100 * site.relative(), 1),
            number(bias, 1),
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
        "In percent: not fired yet, of active neurons on single images; silent, of neurons that should fire "
        "on some image and fire on none; saturated, with a spike at every step; dead, channels that cannot "
        "fire.",
    )
    return Table("Every site", header, tuple(lines), notes)


def _words(part: str) -> str:
    return part.replace("_", " ")
