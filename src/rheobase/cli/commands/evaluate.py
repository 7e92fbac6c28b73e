"""`rheobase evaluate`: one spiking network over the test images."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rheobase.cli import models, options
from rheobase.cli.images import REMEMBERED, Images, takes_images

if TYPE_CHECKING:
    from threading import Event

    from torch import Tensor, nn

    from rheobase.analysis import Evaluation
    from rheobase.network import SNN
    from rheobase.simulation import Exit
    from rheobase.training import Dataset, Split

Rule = Literal["margin", "confidence", "patience"]

_CALIBRATION = 2000  # training images to fit an exit rule on
_LOSS = 0.2


@takes_images
def evaluate(
    network: options.Network,
    images: Images = REMEMBERED,
    steps: options.StepsOfNetwork = None,
    exit: Annotated[
        Rule | None,
        typer.Option(
            help="The exit rule, by which images leave when their answer is safe; fitted on training images."
        ),
    ] = None,
    lose: Annotated[
        float | None,
        typer.Option(
            help="Points of accuracy that --exit may cost, by default 0.2, or the least that few training "
            "images can show. Images that the network was not trained on can lose more.",
            min=0,
        ),
    ] = None,
    ann: options.Ann = None,
    weights: options.Weights = None,
    profile: Annotated[
        Literal["exact", "fast", "int8"],
        typer.Option(help="The arithmetic: single precision, half precision or eight bits."),
    ] = "exact",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="The most images at a time, by default 512 on a GPU and 128 elsewhere. On a CPU it changes "
            "results in `fast` only.",
            min=1,
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Number of test images; by default all.", min=1)] = None,
    page: options.Page = None,
    record: options.RecordFile = None,
    device: options.Device = "auto",
) -> None:
    """Simulate a spiking network on the test images: accuracy, spikes and energy at every step.

    Ctrl-C ends it after the current batch and shows the results so far.

    Examples:
    - `rheobase evaluate snn.safetensors --steps 32`
    - `rheobase evaluate snn.safetensors --exit margin --lose 0.5 --page evaluate.html --record evaluate.json`
    """
    from rheobase.cli.console import show_evaluations, show_exit
    from rheobase.reports import record_evaluation

    options.ensure_apart(network, weights, page, record)
    if weights is not None and ann is None:
        raise ValueError("--weights belong to the model that was converted: name it by --ann")
    if lose is not None and exit is None:
        raise ValueError("--lose limits the cost of early exit: choose a rule by --exit")
    snn = models.load_spiking(network).to(device)
    steps = models.choose_steps(snn, steps, options.USUAL_STEPS)
    dataset = images.load_for(snn)
    model = None if ann is None else models.load(ann, weights, dataset)
    # Shuffled, so that a run that is stopped has seen all classes.
    split = dataset.test.take(min(limit or len(dataset.test), len(dataset.test)))
    rule, fitted = (None, "") if exit is None else _fit_rule(snn, dataset, exit, steps, profile, lose)
    full = _measure(snn, split, steps, batch_size, profile)
    early = None
    if rule is not None and full.samples == len(split):
        early = _measure(snn, split, steps, batch_size, profile, rule)
    kept = early or full
    before = _describe(model, split, kept.samples)
    title = f"{network.name} on {dataset.name}"
    partial = kept.samples < len(split)
    if partial:
        title = f"{title}, stopped after {kept.samples:,} of {len(split):,} images"
    written: list[str] = []
    if page is not None or record is not None:
        applied = None if early is None else rule
        run = record_evaluation(
            snn,
            kept,
            title=title,
            dataset=dataset.name,
            command=options.command_line(),
            exit_rule=applied,
            **before,
        )
        written = options.write_run(run, page, record)
    same = kept.samples == full.samples
    show_evaluations({f"start {snn.provenance.initial}": full}, before.get("ann_accuracy") if same else None)
    if rule is not None and early is not None and not partial:
        show_exit(full, early, rule, fitted)
    for line in (*([title] if partial else []), *written):
        typer.echo(line)
    if partial:
        raise typer.Exit(options.INTERRUPTED)


def _fit_rule(
    snn: "SNN", dataset: "Dataset", rule: Rule, steps: int, profile: str, lose: float | None
) -> tuple["Exit", str]:
    """An exit rule, and how it was fitted."""
    from rheobase import Confidence, Margin, Patience, fit_exit
    from rheobase.analysis import least_loss

    kinds: dict[Rule, type[Exit]] = {"margin": Margin, "confidence": Confidence, "patience": Patience}
    calibration = models.take(dataset.train, _CALIBRATION)
    least = least_loss(len(calibration))
    loss = max(_LOSS, least) if lose is None else lose
    fitted = fit_exit(snn, calibration, kinds[rule], steps=steps, loss=loss, profile=profile)
    reason = ", the least that so few can show" if lose is None and loss == least else ""
    return fitted, (
        f"fitted on {len(calibration):,} training images to lose at most {loss:g} points{reason}; images "
        "that the network was not trained on can lose more"
    )


def _measure(
    snn: "SNN", split: "Split", steps: int, batch_size: int | None, profile: str, rule: "Exit | None" = None
) -> "Evaluation":
    """Evaluate a network; after Ctrl-C, on the images done so far."""
    import rheobase
    from rheobase.io import interruptible

    with interruptible() as asked:
        data = _UntilAsked(split, asked)
        return rheobase.evaluate(snn, data, steps, exit_rule=rule, profile=profile, batch_size=batch_size)


class _UntilAsked:
    """A split whose batches end at Ctrl-C."""

    def __init__(self, split: "Split", asked: "Event") -> None:
        self.split, self.asked = split, asked

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int) -> "Iterator[tuple[Tensor, Tensor]]":
        for number, batch in enumerate(self.split.batches(size)):
            if self.asked.is_set():
                if number == 0:
                    raise KeyboardInterrupt
                return
            yield batch


def _describe(model: "nn.Module | None", split: "Split", samples: int) -> dict[str, Any]:
    """What a record holds of the ANN, on the images that the SNN was measured on."""
    from rheobase import inspect
    from rheobase.analysis import accuracy, ann_joules, count_operations

    if model is None:
        return {}
    seen = replace(split, images=split.images[:samples], labels=split.labels[:samples])
    x = split.normalise(split.images[:1])
    return {
        "ann_accuracy": accuracy(model, seen),
        "ann_joules": ann_joules(count_operations(model, x).flop),
        "coverage": inspect(model, x),
    }
