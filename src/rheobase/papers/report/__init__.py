"""The report on a paper's reproduction: equal records give equal bytes."""

from collections.abc import Iterable
from pathlib import Path

from rheobase.papers import registry
from rheobase.papers.records import Record
from rheobase.papers.report.sections import account
from rheobase.reports import write_page


def write_report(
    records: Iterable[Record], out: Path | str, title: str = "Reproduction report"
) -> tuple[Path, Path]:
    """Write the measured results, compared with the papers' values, as an HTML page and as Markdown.

    The page is self-contained: it has no script and makes no request.

    Args:
        records: The records, in any order.
        out: The folder for `report.html` and `report.md`.
        title: The title of the report.

    Returns:
        The two files.

    Raises:
        ValueError: There are no records, or they name an unknown paper.
    """
    kept = list(records)
    if not kept:
        raise ValueError("no records to report on: measure some with `rheobase reproduce` first")
    accounts = [
        account(registry.get(name), [r for r in kept if r.paper == name])
        for name in sorted({r.paper for r in kept})
    ]
    page, text = (
        write_page(Path(out) / name, f"{name}.j2", title=title, papers=accounts)
        for name in ("report.html", "report.md")
    )
    return page, text
