"""`rheobase report`: pages from records."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli.options import check_folder, check_page, ensure_apart


def report(
    results: Annotated[
        list[Path] | None, typer.Argument(help="A folder of records, or the records of single runs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder of the report, or for single runs the page.")
    ] = None,
) -> None:
    """Draw tables and figures: a folder of records next to the paper's values, or runs side by side.

    Examples:
    - `rheobase report results --out report`
    - `rheobase report evaluate.json diagnose.json --out runs.html`
    """
    from rheobase.papers import records, write_report
    from rheobase.reports import page_of

    given = results or [Path("results")]
    if any(path.suffix == ".json" for path in given):
        page = check_page(out) or Path("report.html")
        ensure_apart(*{path.resolve() for path in given}, page)
        _refuse_others(given)
        typer.echo(f"page: {page_of(given, page)}")
        return
    if len(given) > 1:
        raise ValueError(f"give one folder of records, or .json files; got {len(given)} paths")
    if not given[0].is_dir():
        raise FileNotFoundError(
            f"there is no folder {given[0]}: give one with the records of `rheobase reproduce`, or the .json "
            "records of single runs"
        )
    check_folder(out)
    page, text = write_report(records.load_all(given[0]), out or Path("report"))
    typer.echo(f"written: {page} and {text}")


def _refuse_others(files: list[Path]) -> None:
    """Explain why records of other commands have no page."""
    from rheobase.io import read_fields

    for path in files:
        content = read_fields(path)
        timed = content and all(isinstance(t, dict) and "median" in t for t in content.values())
        if timed or "trials" in content:
            command = "bench" if timed else "advise"
            raise ValueError(
                f"{path} is a record of `rheobase {command}`, which has no page: it holds the table that the "
                "command printed; give records of `rheobase evaluate`, `rheobase diagnose` or "
                "`rheobase compare`"
            )
