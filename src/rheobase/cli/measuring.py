"""Commands that measure: one spiking network at every step, and all methods side by side."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rheobase.cli import models
from rheobase.cli.options import (
    INTERRUPTED,
    Ann,
    Data,
    Device,
    Limit,
    Model,
    Network,
    Page,
    RecordFile,
    Root,
    Samples,
    Shape,
    Steps,
    Weights,
    check_output,
    command_line,
    ensure_apart,
    explained_shape,
    parse_names,
    parse_pairs,
    parse_shape,
    parse_steps,
    say,
    write_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

    from torch import Tensor, nn

    from rheobase.analysis import Evaluation
    from rheobase.network import SNN
    from rheobase.simulation import Exit
    from rheobase.training import Dataset, Split

_CALIBRATION = 2000  # training images to fit an exit on, where there are as many
_LOSS = 0.2  # points that an exit may cost, where nobody says


Rule = Literal["margin", "confidence", "patience"]


def evaluate(
    network: Network,
    data: Data = "digits",
    steps: Steps = 32,
    exit: Annotated[Rule | None, typer.Option(help="Let images leave when their answer is safe.")] = None,
    lose: Annotated[
        float | None,
        typer.Option(
            help="Points of accuracy that --exit may cost, 0.2 unless given; fitted on training images.",
            min=0,
        ),
    ] = None,
    ann: Ann = None,
    weights: Weights = None,
    profile: Annotated[
        Literal["exact", "fast", "int8"], typer.Option(help="The arithmetic: single, half or eight bits.")
    ] = "exact",
    batch_size: Annotated[
        int, typer.Option(help="Images at a time; on a CPU it changes no result but in fast.", min=1)
    ] = 100,
    limit: Limit = None,
    page: Page = None,
    record: RecordFile = None,
    root: Root = None,
    device: Device = "cpu",
) -> None:
    """Run a spiking network over the test images: accuracy, spikes and energy at every step.

    Ctrl-C ends it after the present batch, and shows what was measured until then.

    Example: `rheobase evaluate snn.safetensors --steps 32`,
    `rheobase evaluate snn.safetensors --exit margin --lose 0.5 --page evaluate.html --record evaluate.json`
    """
    from rheobase.cli.console import show, show_exit
    from rheobase.reports import record_evaluation
    from rheobase.training import datasets

    ensure_apart(network, weights, page, record)
    if weights is not None and ann is None:
        raise ValueError(
            "--weights are those of the model that was converted: name it by --ann, or leave them out"
        )
    if lose is not None and exit is None:
        raise ValueError("--lose is what leaving early may cost: say by --exit when an image leaves")
    snn = models.load_spiking(network).to(device)
    dataset = datasets.load(data, root)
    original = None if ann is None else models.load(ann, weights, dataset)
    split = models.take(dataset.test, limit)
    rule = None if exit is None else _fit(snn, dataset, exit, steps, profile, lose)
    found = _measure(snn, split, steps, batch_size, profile)
    early = None
    if rule is not None and found.samples == len(split):
        early = _measure(snn, split, steps, batch_size, profile, rule)
    kept = early or found
    beside = _describe(original, split, kept.samples)
    title = f"{network.name} on {dataset.name}"
    partial = kept.samples < len(split)
    if partial:
        title = f"{title}, stopped after {kept.samples:,} of {len(split):,} images"
    written: list[str] = []
    if page is not None or record is not None:
        left = None if early is None else rule
        run = record_evaluation(
            snn, kept, title=title, dataset=dataset.name, command=command_line(), exit_rule=left, **beside
        )
        written = write_run(run, page, record)
    show(
        {str(snn.provenance.initial): found},
        beside.get("ann_accuracy") if kept.samples == found.samples else None,
    )
    if rule is not None and early is not None and not partial:
        show_exit(found, early, rule)
    say([*([title] if partial else []), *written])
    if partial:
        raise typer.Exit(INTERRUPTED)


def bench(
    model: Model,
    shape: Shape = "3,32,32",
    steps: Steps = 32,
    batch: Annotated[int, typer.Option(help="Images at a time.", min=1)] = 32,
    repeats: Annotated[int, typer.Option(help="Timed calls of each.", min=1)] = 5,
    record: RecordFile = None,
    device: Device = "cpu",
) -> None:
    """Time how fast a model is simulated here, in each profile and beside the plain ways to do it.

    Speed does not depend on what a network has learnt: fresh weights will do.

    Example: `rheobase bench small --shape 1,8,8 --steps 8`, `rheobase bench vgg16 --batch 512 --device cuda`
    """
    import torch

    import rheobase
    from rheobase.analysis import bench as measure
    from rheobase.cli.console import show_timings
    from rheobase.io import replace_file

    size = parse_shape(shape)
    network = models.build(model, 10, size).eval()
    x = torch.randn(batch, *size, generator=torch.Generator().manual_seed(0))
    with explained_shape(shape):
        snn = rheobase.convert(network, "max-norm", x, initial=rheobase.HALF).to(device)
    found = measure(network, snn, x.to(device), steps, repeats=repeats)
    if record is not None:
        replace_file(record, json.dumps({n: asdict(t) for n, t in found.items()}, indent=1) + "\n")
    show_timings(found, batch, f"{model}, batch {batch}, T = {steps}, {device}")
    say([] if record is None else [f"record: {record}"])


def _fit(snn: "SNN", dataset: "Dataset", rule: Rule, steps: int, profile: str, lose: float | None) -> "Exit":
    from rheobase import Confidence, Margin, Patience, fit_exit

    kinds: dict[Rule, type[Exit]] = {"margin": Margin, "confidence": Confidence, "patience": Patience}
    some = models.take(dataset.train, _CALIBRATION)
    loss = _LOSS if lose is None else lose
    return fit_exit(snn, some, kinds[rule], steps=steps, loss=loss, profile=profile)


def _measure(
    snn: "SNN", split: "Split", steps: int, batch_size: int, profile: str, rule: "Exit | None" = None
) -> "Evaluation":
    """Evaluate a network; after Ctrl-C, on as many images as were done."""
    import rheobase
    from rheobase.io import interruptible

    with interruptible() as asked:
        batches = _UntilAsked(split, batch_size, asked)
        return rheobase.evaluate(snn, batches, steps, exit_rule=rule, profile=profile)


class _UntilAsked:
    """The batches of a split, up to the moment when somebody asks to stop."""

    def __init__(self, split: "Split", batch_size: int, asked: "Event") -> None:
        self.split, self.batch_size, self.asked = split, batch_size, asked

    def __len__(self) -> int:
        return -(-len(self.split) // self.batch_size)

    def __iter__(self) -> "Iterator[tuple[Tensor, Tensor]]":
        for number, batch in enumerate(self.split.batches(self.batch_size)):
            if self.asked.is_set():
                if number == 0:
                    raise KeyboardInterrupt
                return
            yield batch


def _describe(ann: "nn.Module | None", split: "Split", samples: int) -> dict[str, Any]:
    """What a record has of the ordinary network, on the images that the spiking one was measured on."""
    from rheobase import inspect
    from rheobase.analysis import accuracy, ann_joules, count_operations

    if ann is None:
        return {}
    seen = replace(split, images=split.images[:samples], labels=split.labels[:samples])
    x = split.normalise(split.images[:1])
    return {
        "ann_accuracy": accuracy(ann, seen),
        "ann_joules": ann_joules(count_operations(ann, x).flop),
        "coverage": inspect(ann, x),
    }


def compare(
    model: Model = "small",
    weights: Weights = None,
    data: Data = "digits",
    methods: Annotated[str, typer.Option(help="Names with commas between, or `all`.")] = "all",
    initial: Annotated[str, typer.Option(help="Starts with commas between.")] = "zero,half",
    steps: Annotated[str, typer.Option(help="Columns with commas between.")] = "8,16,32,64,128",
    coding: Annotated[
        Literal["constant", "own"], typer.Option(help="`constant` for all, or each method's `own`.")
    ] = "constant",
    trained: Annotated[
        list[str] | None, typer.Option(help="Weights trained for a method, as opi=FILE; repeatable.")
    ] = None,
    samples: Samples = 256,
    out: Annotated[Path, typer.Option(help="Where to write the page.", callback=check_output)] = Path(
        "compare.html"
    ),
    root: Root = None,
) -> None:
    """Convert one trained network by every method and start, and put them side by side.

    Without `--weights` a built-in network is trained first, in seconds on the digits. Ctrl-C ends it, and
    shows the rows measured until then.

    Example: `rheobase compare small --methods robust-norm,max-norm --initial zero,half --steps 4,8,16`
    """
    from rheobase import methods as registry
    from rheobase.analysis import STOPPED
    from rheobase.analysis import compare as contest
    from rheobase.cli.console import show_comparison
    from rheobase.network import parse_start
    from rheobase.reports import comparison_page
    from rheobase.training import datasets

    if out.suffix == ".json":
        raise ValueError(f"the record goes to {out}: give the page another name, such as {out.stem}.html")
    dataset = datasets.load(data, root)
    columns = parse_steps(steps)
    starts = [parse_start(name) for name in parse_names(initial)]
    names = None if methods == "all" else parse_names(methods)
    files = parse_pairs(trained)
    own = {name: models.load(model, Path(file), dataset) for name, file in files.items()}
    for name in (*(names or []), *own):
        registry.find(name)
    network = models.load_or_train(model, weights, dataset)
    result = contest(
        network,
        models.take(dataset.train, samples),
        dataset.test,
        methods=names,
        starts=starts,
        steps=columns,
        coding=coding,
        trained={models.method_for(model, weights): network, **own},
        title=f"{model} on {dataset.name}",
    )
    result = replace(result, command=command_line())
    result.write(out.with_suffix(".json"))
    page = comparison_page(result, out)
    show_comparison(result)
    say([f"record: {out.with_suffix('.json')}", f"page: {page}"])
    if any(row.note == STOPPED for row in result.rows):
        raise typer.Exit(INTERRUPTED)
