"""`rheobase reproduce`: measure what a paper printed."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from rheobase.cli.options import LARGEST_SEED, Root, check_device, parse_names, parse_settings


def reproduce(
    paper: Annotated[str, typer.Argument(help="A paper, such as `opi2022`.")],
    cell: Annotated[
        str | None,
        typer.Argument(help="One of its networks, such as `resnet20-cifar10`; by default they are listed."),
    ] = None,
    parts: Annotated[str, typer.Option(help="What to measure, separated by commas.")] = "table",
    rows: Annotated[
        bool, typer.Option("--rows", help="Measure the other methods of the network's table instead.")
    ] = False,
    study: Annotated[
        bool, typer.Option("--study", help="Try training settings on held-out training images instead.")
    ] = False,
    candidate: Annotated[
        list[str] | None,
        typer.Option(help="Settings for --study, such as batch_size=64,start=2, or own; repeatable."),
    ] = None,
    chosen: Annotated[
        str | None,
        typer.Option(
            help="Train with the best settings of --study on the networks of the `dataset`, or on `all`; "
            "or with these, such as batch_size=64,start=2."
        ),
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Use the pretrained network of the package.")
    ] = False,
    trained_for: Annotated[
        str | None, typer.Option(help="Train for this method instead of the paper's.")
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(help="The methods of the part `methods`, separated by commas; by default all."),
    ] = None,
    tuning: Annotated[
        list[str] | None, typer.Option(help="A setting of the part `tuned`, as name=value; repeatable.")
    ] = None,
    profile: Annotated[str, typer.Option(help="The arithmetic: exact, fast or int8.")] = "exact",
    seed: Annotated[int, typer.Option(help="Seed of the training.", min=0, max=LARGEST_SEED)] = 0,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the paper's, for a trial.", min=1)] = None,
    limit: Annotated[int | None, typer.Option(help="Largest number of images, for a trial.", min=1)] = None,
    size: Annotated[
        int | None, typer.Option(help="Width of the pictures of a folder, for a trial.", min=1)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Largest number of time steps.", min=1)] = None,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Train to the same bits every time; slower on a GPU.")
    ] = False,
    results: Annotated[Path, typer.Option(help="The folder for records.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="The folder for training checkpoints.")] = Path("runs"),
    root: Root = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu or cuda; by default a GPU if there is one.", callback=check_device),
    ] = None,
) -> None:
    """Train a paper's network, convert it, measure it and write records. An interrupted run resumes.

    On several GPUs: `torchrun --nproc-per-node 8 -m rheobase.cli reproduce …`.

    Examples:
    - `rheobase reproduce opi2022 resnet20-cifar10 --parts table,starts --root data`
    - `rheobase reproduce opi2022 vgg16-cifar10 --rows --root data`
    - `rheobase reproduce opi2022 vgg16-cifar10 --parts own --trained-for tcl --root data`
    - `rheobase reproduce opi2022 resnet20-cifar10 --study --candidate own --candidate start=2 --root data`
    - `rheobase reproduce opi2022 resnet20-cifar10 --chosen dataset --seed 1 --root data`
    - `rheobase reproduce opi2022 resnet20-cifar100 --chosen batch_size=64,decayed=layers --root data`
    """
    from rheobase.cli.console import show_records
    from rheobase.io import joined
    from rheobase.papers import Candidate, reproduction

    if cell is None:
        _list_cells(paper, results)
        return
    training: dict[str, Any] = {
        "folder": results,
        "runs": runs,
        "seed": seed,
        "epochs": epochs,
        "limit": limit,
        "size": size,
        "deterministic": deterministic,
        "device": device,
    }
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
    if study:
        given = {
            "--chosen": chosen, "--pretrained": pretrained, "--trained-for": trained_for,
            "--methods": methods, "--tuning": tuning, "--steps": steps, "--parts": parts != "table",
            "--rows": rows,
        }  # fmt: skip
        if unused := [name for name, value in given.items() if value]:
            raise ValueError(f"--study only tries training settings: leave out {unused[0]}")
        if candidate:
            training["candidates"] = [Candidate.parse(text) for text in candidate]
        run, then = reproduction.select, "`--chosen dataset` trains with the best"
    else:
        if candidate:
            raise ValueError("--candidate is a setting for --study: pass both, or neither")
        run, then = reproduction.reproduce, "`rheobase report` draws them"
        training |= {"steps": steps, "tuning": parse_settings(tuning), "chosen": chosen}
        if rows:
            given = {
                "--parts": parts != "table", "--methods": methods, "--trained-for": trained_for,
                "--pretrained": pretrained,
            }  # fmt: skip
            if unused := [name for name, value in given.items() if value]:
                raise ValueError(f"--rows decides on networks and methods itself: leave out {unused[0]}")
            run = reproduction.reproduce_rows
        else:
            training |= {
                "parts": parse_names(parts),
                "names": None if methods is None else parse_names(methods),
                "trained_for": trained_for,
                "pretrained": pretrained,
            }
    with joined() as ranks:
        found = run(paper, cell, root, profile=profile, **training)
        kept = list({record.file_name: record for record in found}.values())  # parts may share records
        count = len(kept)
        if ranks.first:
            if kept:
                show_records(kept)
            for checksum in sorted({r.extra["sha256"] for r in kept if "sha256" in r.extra}):
                typer.echo(f"weights in {runs}: SHA-256 {checksum}")
            typer.echo(f"{count} record{'' if count == 1 else 's'} in {results}; {then}")


def _list_cells(name: str, results: Path) -> None:
    """Print a paper's networks, and of which there are records."""
    from rheobase import papers
    from rheobase.io import format_table
    from rheobase.papers import TABLE, records

    paper = papers.get(name)
    found = records.load_all(results) if results.exists() else []
    rows = []
    for cell in paper.cells:
        own = [r for r in found if (r.paper, r.model, r.dataset) == (name, cell.model, cell.dataset)]
        tables = {r.table for r in own if not r.shortened or r.table == TABLE}
        missing = "shortened runs only" if own else "not measured"
        rows.append((cell.name, cell.title, cell.table, ", ".join(sorted(tables)) or missing))
    header = ("network", "title", "printed in", f"measured in {results}")
    typer.echo(format_table(header, rows, left=4))
