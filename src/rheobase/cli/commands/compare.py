"""`rheobase compare`: all methods side by side on one network."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from rheobase.cli import models, options
from rheobase.cli.images import REMEMBERED, Images, takes_images


@takes_images
def compare(
    model: options.Model = "small",
    weights: options.Weights = None,
    images: Images = REMEMBERED,
    methods: Annotated[
        str, typer.Option(help="Names separated by commas, with corrections as qcfs+signed+ftbc; or `all`.")
    ] = "all",
    starts: Annotated[str, typer.Option(help="Starts separated by commas.")] = "zero,half",
    steps: Annotated[str, typer.Option(help="Columns separated by commas.")] = "8,16,32,64,128",
    coding: Annotated[
        Literal["constant", "own"], typer.Option(help="`constant` for all, or each method's `own`.")
    ] = "constant",
    trained: Annotated[
        list[str] | None, typer.Option(help="Weights trained for a method, as opi=FILE; repeatable.")
    ] = None,
    samples: options.Samples = 256,
    out: Annotated[Path, typer.Option(help="The .html file for the page.", callback=options.check_page)] = (
        Path("compare.html")
    ),
) -> None:
    """Convert one trained network by every method and start, and compare them.

    Without `--weights` a built-in network is trained first, in seconds on the digits. Ctrl-C ends it and
    shows the rows measured so far.

    Example: `rheobase compare small --methods robust-norm,max-norm --starts zero,half --steps 4,8,16`
    """
    import rheobase
    from rheobase import methods as registry
    from rheobase.analysis import STOPPED
    from rheobase.cli.console import show_comparison
    from rheobase.network import parse_start
    from rheobase.reports import comparison_page

    record = out.with_suffix(".json")
    files = options.parse_pairs(trained)
    read = [models.file_of(model), weights, *map(Path, files.values())]
    options.ensure_apart(*{path.resolve() for path in read if path is not None}, out, record)
    columns = options.parse_steps(steps)
    asked = [parse_start(name) for name in options.parse_names(starts)]
    names = None if methods == "all" else options.parse_names(methods)
    for name in (*(part.strip() for chain in names or [] for part in chain.split("+")), *files):
        registry.find(name)
    dataset, _ = images.load(models.images_of(model, weights))
    own = {name: models.load(model, Path(file), dataset) for name, file in files.items()}
    network = models.load_or_train(model, weights, dataset)
    if (method := models.method_for(model, weights)) is not None:
        own = {method: network, **own}
    result = rheobase.compare(
        network,
        models.take(dataset.train, samples),
        dataset.test,
        methods=names,
        starts=asked,
        steps=columns,
        coding=coding,
        trained=own,
        title=f"{model} on {dataset.name}",
    )
    result = replace(result, command=options.command_line())
    result.write(record)
    page = comparison_page(result, out)
    show_comparison(result)
    typer.echo(f"record: {record}\npage: {page}")
    if any(row.note == STOPPED for row in result.rows):
        raise typer.Exit(options.INTERRUPTED)
