"""Reports: records as pages and tables, the same bytes for the same records."""

from collections.abc import Iterable
from pathlib import Path

from rheobase.papers import registry
from rheobase.papers.records import Record
from rheobase.papers.report.sections import account
from rheobase.reports import (
    Demonstration,
    accuracy_figure,
    accuracy_page,
    comparison_page,
    diagnosis_page,
    evaluation_page,
    joined_page,
    page_of,
    write_page,
)

__all__ = [
    "Demonstration",
    "accuracy_figure",
    "accuracy_page",
    "comparison_page",
    "diagnosis_page",
    "evaluation_page",
    "joined_page",
    "page_of",
    "report",
]


def report(
    records: Iterable[Record], out: Path | str, title: str = "Reproduction report"
) -> tuple[Path, Path]:
    """Write what was measured, beside what the papers print, as a page and as Markdown.

    The page needs nothing but itself: no script, no font, no request.

    Args:
        records: What was measured, in any order.
        out: The folder to write `report.html` and `report.md` to.
        title: What the report is called.

    Returns:
        The two files.

    Raises:
        ValueError: There are no records, or they name a paper that is not known.
    """
    kept = list(records)
    if not kept:
        raise ValueError(
            "there are no records to report on: measure something first, with rheobase reproduce"
        )
    accounts = [
        account(registry.get(name), [r for r in kept if r.paper == name])
        for name in sorted({r.paper for r in kept})
    ]
    page, text = (
        write_page(Path(out) / name, f"{name}.j2", title=title, papers=accounts)
        for name in ("report.html", "report.md")
    )
    return page, text
