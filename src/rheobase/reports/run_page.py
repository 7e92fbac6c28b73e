"""Pages about one run: an evaluation, or a diagnosis with what an evaluation has."""

from collections.abc import Iterable
from pathlib import Path

from rheobase.reports import diagnosis_page as diagnosis_sections
from rheobase.reports import run_sections
from rheobase.reports.pages import Section, write_page
from rheobase.reports.run_record import RunRecord
from rheobase.reports.tables import microjoules, number


def evaluation_page(record: RunRecord, out: Path | str) -> Path:
    """Write one page about what was measured of a converted network.

    The page needs nothing but itself: no script, no font, no request. The same record gives the same bytes.

    Args:
        record: What was measured.
        out: The file to write.

    Returns:
        The file's path.
    """
    return _write(record, out, _tell(record), _shared(record))


def diagnosis_page(record: RunRecord, out: Path | str) -> Path:
    """Write one page about where a conversion loses accuracy, what helps, and what was measured besides.

    Args:
        record: What was measured, with its diagnosis.
        out: The file to write.

    Returns:
        The file's path.

    Raises:
        ValueError: The record holds no diagnosis.
    """
    found = record.diagnosis
    if found is None:
        raise ValueError(
            f"the record “{record.title}” holds no diagnosis: make one with record_diagnosis, or draw "
            "it with evaluation_page"
        )
    sections = [
        diagnosis_sections.findings_section(found),
        diagnosis_sections.remedies_section(found),
        diagnosis_sections.errors_section(found),
        diagnosis_sections.delays_section(found),
        *(diagnosis_sections.trace_section(number, sample) for number, sample in enumerate(record.traces)),
        diagnosis_sections.starts_section(record),
        *_shared(record),
    ]
    lead = (
        f"Converted by {record.method}, start {record.initial}. {found.measure.capitalize()} after "
        f"{found.steps} steps on {found.samples:,} inputs: {number(found.snn)} %, ordinary network "
        f"{number(found.ann)} %."
    )
    return _write(record, out, lead, sections)


def _shared(record: RunRecord) -> list[Section | None]:
    return [
        run_sections.accuracy_section(record),
        run_sections.exit_section(record),
        run_sections.sites_section(record),
        run_sections.coverage_section(record),
    ]


def _tell(record: RunRecord) -> str:
    found = record.evaluation
    end = found.at(found.steps)
    before = (
        "" if record.ann_accuracy is None else f" Before conversion it is {number(record.ann_accuracy)} %."
    )
    return (
        f"Converted by {record.method}, start {record.initial}. After {found.steps} steps "
        f"{number(end.accuracy)} % of {found.samples:,} images are right, with "
        f"{end.spikes:,.0f} spikes and {microjoules(end.joules)} µJ an image.{before}"
    )


def _write(record: RunRecord, out: Path | str, lead: str, sections: Iterable[Section | None]) -> Path:
    return write_page(
        Path(out),
        "run.html.j2",
        title=record.title,
        lead=lead,
        sections=[section for section in sections if section is not None],
        settings=run_sections.settings_of(record),
    )
