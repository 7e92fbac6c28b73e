"""Commands around records: measure what a paper printed, and draw what was measured."""

from pathlib import Path
from typing import Annotated

import typer

from rheobase.cli.arguments import Root


def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, such as `opi2022`.")],
    cell: Annotated[str, typer.Argument(help="One of its networks, such as `resnet20-cifar10`.")],
    parts: Annotated[str, typer.Option(help="What to measure, with commas between.")] = "table",
    seed: Annotated[int, typer.Option(help="Of the training.")] = 0,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the paper's, for a trial.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images, for a trial.")] = None,
    steps: Annotated[int | None, typer.Option(help="At most so many time steps.")] = None,
    results: Annotated[Path, typer.Option(help="Where records go.")] = Path("results"),
    root: Root = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
) -> None:
    """Train a paper's network, convert it, measure it and write records; resumes where it stopped.

    Example: `rheobase reproduce opi2022 resnet20-cifar10 --parts table,starts --root data`
    """
    from rheobase.reproduction import reproduce as run

    written = run(
        paper,
        cell,
        root,
        parts=parts.split(","),
        folder=results,
        seed=seed,
        epochs=epochs,
        limit=limit,
        steps=steps,
        device=device,
    )
    typer.echo(f"{len(written)} records under {results}; `rheobase report` draws them")


def report(
    results: Annotated[
        list[Path] | None, typer.Argument(help="A folder of records, or records of single runs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the report, or the page where runs were given.")
    ] = None,
    readme: Annotated[Path | None, typer.Option(help="A README to make anew between its markers.")] = None,
) -> None:
    """Draw tables and figures: of a folder of records beside the paper's numbers, or of runs side by side.

    Example: `rheobase report results --out report`,
    `rheobase report evaluate.json diagnose.json --out runs.html`
    """
    from rheobase import records, reports

    given = results or [Path("results")]
    if any(path.suffix == ".json" for path in given):
        if readme is not None:
            raise ValueError("--readme is made from a folder of records, not from single runs")
        typer.echo(f"page: {reports.page_of(given, out or Path('report.html'))}")
        return
    if len(given) > 1:
        raise ValueError(f"give one folder of records, or files ending in .json; got {len(given)} folders")
    page, text = reports.report(records.load_all(given[0]), out or Path("report"))
    typer.echo(f"written: {page} and {text}")
    if readme is not None:
        reports.renew(readme, given[0])
        typer.echo(f"renewed: {readme}")
