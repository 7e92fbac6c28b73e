"""Commands around records: measure what a paper printed, and draw what was measured."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rheobase.cli.options import (
    LARGEST_SEED,
    Root,
    check_device,
    check_folder,
    check_output,
    parse_names,
    parse_settings,
)


def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, such as `opi2022`.")],
    cell: Annotated[
        str | None,
        typer.Argument(help="One of its networks, such as `resnet20-cifar10`; without, they are listed."),
    ] = None,
    cell_option: Annotated[str | None, typer.Option("--cell", help="The same, by name.")] = None,
    parts: Annotated[str, typer.Option(help="What to measure, with commas between.")] = "table",
    study: Annotated[
        bool, typer.Option("--study", help="Try settings on held-out training images instead.")
    ] = False,
    candidate: Annotated[
        list[str] | None,
        typer.Option(help="Settings for --study, such as clip_decay=0.002,start=2, or own; repeatable."),
    ] = None,
    chosen: Annotated[
        bool, typer.Option("--chosen", help="Train with the settings that did best in --study.")
    ] = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Take the network that comes with the package.")
    ] = False,
    trained_for: Annotated[
        str | None, typer.Option(help="Train for this method instead of the paper's own.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="The methods of the part `methods`, with commas between; else all.")
    ] = None,
    tuning: Annotated[
        list[str] | None, typer.Option(help="A setting of the part `tuned`, as name=value; repeatable.")
    ] = None,
    profile: Annotated[str, typer.Option(help="The arithmetic: exact, fast or int8.")] = "exact",
    seed: Annotated[int, typer.Option(help="Of the training.", min=0, max=LARGEST_SEED)] = 0,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the paper's, for a trial.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many images, for a trial.", min=1)] = None,
    steps: Annotated[int | None, typer.Option(help="At most so many time steps.", min=1)] = None,
    results: Annotated[Path, typer.Option(help="Where records go.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where checkpoints of trainings go.")] = Path("runs"),
    root: Root = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda; by default a GPU if there is one.", callback=check_device),
    ] = None,
) -> None:
    """Train a paper's network, convert it, measure it and write records; resumes where it stopped.

    On several GPUs: `torchrun --nproc-per-node 8 -m rheobase.cli reproduce …`.

    Example: `rheobase reproduce opi2022 resnet20-cifar10 --parts table,starts --root data`,
    `rheobase reproduce opi2022 vgg16-cifar10 --parts own --trained-for tcl --root data`,
    `rheobase reproduce opi2022 resnet20-cifar10 --study --candidate own --candidate start=2 --root data`
    """
    from rheobase.io import joined
    from rheobase.papers import Candidate, reproduction

    if cell and cell_option:
        raise ValueError(f"the network was given twice, as {cell} and --cell {cell_option}: leave one out")
    if not (cell := cell or cell_option):
        _list_cells(paper, results)
        return
    training: dict[str, Any] = {
        "folder": results,
        "runs": runs,
        "seed": seed,
        "epochs": epochs,
        "limit": limit,
        "device": device,
    }
    if study:
        given = {
            "--chosen": chosen, "--pretrained": pretrained, "--trained-for": trained_for,
            "--methods": methods, "--tuning": tuning, "--steps": steps, "--parts": parts != "table",
        }  # fmt: skip
        if unfit := [name for name, value in given.items() if value]:
            raise ValueError(f"--study only tries settings of the training: leave {unfit[0]} out")
        if candidate:
            training["candidates"] = [Candidate.parse(text) for text in candidate]
        run, told = reproduction.select, "`--chosen` trains with the best"
    else:
        if candidate:
            raise ValueError("--candidate is tried by --study: give both, or leave it out")
        run, told = reproduction.reproduce, "`rheobase report` draws them"
        training |= {
            "parts": parse_names(parts),
            "steps": steps,
            "names": None if methods is None else parse_names(methods),
            "tuning": parse_settings(tuning),
            "trained_for": trained_for,
            "chosen": chosen,
            "pretrained": pretrained,
        }
    with joined() as ranks:
        # What one part has measured another may take too.
        count = len({record.file_name for record in run(paper, cell, root, profile=profile, **training)})
        if ranks.first:
            typer.echo(f"{count} record{'' if count == 1 else 's'} under {results}; {told}")


def _list_cells(name: str, results: Path) -> None:
    """Print a paper's networks, and what there are records of."""
    from rheobase import papers
    from rheobase.papers import TABLE, records

    paper = papers.get(name)
    found = records.load_all(results) if results.exists() else []
    for cell in paper.cells:
        own = [r for r in found if (r.paper, r.model, r.dataset) == (name, cell.model, cell.dataset)]
        tables = {r.table for r in own if not r.shortened or r.table == TABLE}
        without = "only tried, in runs that were cut," if own else "not measured"
        measured = f"measured for {', '.join(sorted(tables))}" if tables else without
        typer.echo(f"{cell.name:18} {cell.title}, {cell.table}; {measured} in {results}")


def report(
    results: Annotated[
        list[Path] | None, typer.Argument(help="A folder of records, or records of single runs.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the report, or the page where runs were given.")
    ] = None,
) -> None:
    """Draw tables and figures: of a folder of records beside the paper's numbers, or of runs side by side.

    Example: `rheobase report results --out report`,
    `rheobase report evaluate.json diagnose.json --out runs.html`
    """
    from rheobase.papers import records, write_report
    from rheobase.reports import page_of

    given = results or [Path("results")]
    if any(path.suffix == ".json" for path in given):
        page = check_output(out) or Path("report.html")
        typer.echo(f"page: {page_of(given, page)}")
        return
    if len(given) > 1:
        raise ValueError(f"give one folder of records, or files ending in .json; got {len(given)} folders")
    if not given[0].is_dir():
        raise FileNotFoundError(
            f"there is no folder {given[0]}: give one with records, as `rheobase reproduce` writes them"
        )
    check_folder(out)
    page, text = write_report(records.load_all(given[0]), out or Path("report"))
    typer.echo(f"written: {page} and {text}")
