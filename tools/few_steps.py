"""Measure the methods for few steps on one trained network, with everything that a number of steps hides.

`python -m tools.few_steps vgg16 --weights FILE --data cifar10 --root FOLDER --device cuda` writes one record.
Settings are chosen for each number of steps on training images that no conversion was fitted to. A run that
was stopped continues where it was: rows that its record has are not measured again.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import convert, evaluate, methods
from rheobase.analysis import accuracy
from rheobase.analysis.costs import latency_of
from rheobase.cli import models
from rheobase.io import find_commit, package_versions, read_document, write_document
from rheobase.methods.hybrid import fine_tune
from rheobase.network import SNN
from rheobase.training import Split, datasets
from tools.markdown import table

RECORDS = Path(__file__).with_name("records")
STEPS = (1, 2, 4, 8, 16, 32)
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]
Chain = tuple[methods.Method, ...]


@dataclass(frozen=True)
class Row:
    """One method at one number of steps.

    Attributes:
        method: What the table calls it.
        settings: The settings that were chosen, as text.
        steps: T: the steps in which outputs are read.
        pre: The steps before them, whose outputs do not count.
        schedule: "synchronous", or "windows" where each layer waits for its input.
        latency: The true latency in steps.
        with_delays: The same with one step of delay per layer.
        lines: Binary wires that a neuron drives.
        accuracy: On the test images, in percent.
        held_out: On the images that settings were chosen by, in percent.
        events: Mean spikes of an image, those before outputs count included.
        sop: Mean synaptic operations of an image.
        neurons: Binary neurons.
        seconds: Duration of conversion, choice and test.
    """

    method: str
    settings: str
    steps: int
    pre: int
    schedule: str
    latency: int
    with_delays: int
    lines: int
    accuracy: float
    held_out: float
    events: float
    sop: float
    neurons: int
    seconds: float


@dataclass(frozen=True)
class FewSteps:
    """All methods on one network.

    Attributes:
        network: The network and its data.
        ann: Accuracy of the ANN on the test images, in percent.
        samples: Number of test images.
        calibration: Number of training images that conversions were fitted to.
        held_out: Number of other training images that settings were chosen by.
        device: What it ran on.
        rows: The measurements.
        versions: Versions of the packages.
        commit: The commit of the source, if known.
    """

    network: str
    ann: float
    samples: int
    calibration: int
    held_out: int
    device: str
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = "unknown"


@dataclass(frozen=True)
class Images:
    """The data of a measurement, on the network's device.

    Attributes:
        calibration: Inputs that conversions are fitted to.
        held_out: Inputs and labels that settings are chosen by.
        test: Yields batches of test inputs and labels each time it is called.
        train: Training images for `fine_tune`; None leaves it out.
    """

    calibration: Tensor
    held_out: tuple[Tensor, Tensor]
    test: Batches
    train: Split | None = None


def entries(base: methods.Method) -> dict[str, Callable[[int], Iterator[Chain]]]:
    """For each row of the table the chains of corrections to choose from, given the number of steps."""
    make = methods.get

    def signed(steps: int) -> Iterator[methods.Method]:
        for rule, forgive in (("eager", False), ("annealed", True), ("annealed", False), ("symmetric", True)):
            yield make("signed", rule=rule, forgive=forgive, steps=steps)

    def biases(steps: int) -> Iterator[methods.Method]:
        for rate in (0.2, 0.4):
            yield make("ftbc", steps=steps, rate=rate)

    found: dict[str, Callable[[int], Iterator[Chain]]] = {
        base.name: lambda steps: iter([()]),
        "signed": lambda steps: ((s,) for s in signed(steps)),
        "ftbc": lambda steps: ((b,) for b in biases(steps)),
        "signed + ftbc": lambda steps: ((s, b) for s in signed(steps) for b in biases(steps)),
        "srp": lambda steps: iter([(make("srp", pre=4),)]),
        "cos": lambda steps: iter([(make("cos", pre=4),)]),
        "fission": lambda steps: iter([(make("fission", steps=steps),)]),
        "fission + signed + ftbc": lambda steps: (
            (make("fission", steps=steps), s, b) for s in signed(steps) for b in list(biases(steps))[1:]
        ),
        "ltb": lambda steps: iter([(make("ltb", steps=steps),)]),
        "parallel": lambda steps: iter([(make("parallel", steps=steps),)]),
        "pascal": lambda steps: iter([(make("pascal", steps=steps),)]),
    }
    for members in (2, 4, 8):
        found[f"gn, {members} members"] = lambda steps, m=members: iter([(make("gn", members=m),)])  # type: ignore[misc]
        for name in ("hmt", "dcgs"):
            found[f"{name}, {members} members"] = lambda steps, n=name, m=members: iter(  # type: ignore[misc]
                [(make(n, members=m, steps=steps),)]
            )
    return found


def measure(
    model: nn.Module,
    images: Images,
    record: FewSteps,
    *,
    base: methods.Method,
    steps: Sequence[int] = STEPS,
    names: Sequence[str] | None = None,
    epochs: int = 1,
    keep: Callable[[FewSteps], None] = lambda record: None,
) -> FewSteps:
    """Measure all methods that the record does not have yet.

    Args:
        model: The ANN, on its device, trained for the base.
        images: The data.
        record: What was measured before.
        base: The method that the network was trained for.
        steps: The numbers of steps.
        names: The rows to measure; by default all.
        epochs: Passes of `fine_tune` over the training images, for up to four steps.
        keep: Called with the record after every row.
    """
    plan = entries(base)
    for name in plan if names is None else [n for n in names if n in plan]:
        for t in steps:
            if not any((row.method, row.steps) == (name, t) for row in record.rows):
                row = _measure(name, t, plan[name](t), model, base, images)
                record = replace(record, rows=[*record.rows, row])
                keep(record)
    if images.train is not None and (names is None or "fine_tune" in names):
        for t in (t for t in steps if t <= 4):
            name = "signed + ftbc + fine_tune"
            if not any((row.method, row.steps) == (name, t) for row in record.rows):
                began = perf_counter()
                chain, snn, _ = _choose(plan["signed + ftbc"](t), model, base, images, t)
                options: dict[str, Any] = {"epochs": epochs, "dropout": 0.0, "thresholds": True}
                tuned = fine_tune(snn, images.train, t, **options, progress=False)
                row = _test(name, f"{_text(chain)}, {epochs} epochs", tuned, t, images, began)
                record = replace(record, rows=[*record.rows, row])
                keep(record)
    return record


def _measure(
    name: str, t: int, chains: Iterator[Chain], model: nn.Module, base: methods.Method, images: Images
) -> Row:
    began = perf_counter()
    chain, snn, _ = _choose(chains, model, base, images, t)
    return _test(name, _text(chain), snn, t, images, began)


def _choose(
    chains: Iterator[Chain], model: nn.Module, base: methods.Method, images: Images, t: int
) -> tuple[Chain, SNN, float]:
    """The chain with the highest accuracy on the held-out images, the first among equals."""
    found = []
    for chain in chains:
        first, *then = chain if chain and not isinstance(chain[0], methods.Correction) else (base, *chain)
        snn = convert(model, first, images.calibration, then=then, progress=False)
        found.append((chain, snn, _accuracy(snn, t, images)))
    return max(found, key=lambda each: each[2])


def _accuracy(snn: SNN, t: int, images: Images) -> float:
    return evaluate(snn, images.held_out, t + snn.delay, progress=False).final_accuracy


def _test(name: str, settings: str, snn: SNN, t: int, images: Images, began: float) -> Row:
    result = evaluate(snn, list(images.test()), t + snn.delay, progress=False)
    end, timing = result.at(result.steps), latency_of(snn, t + snn.delay)
    return Row(
        method=name,
        settings=settings,
        steps=timing.steps,
        pre=timing.pre,
        schedule=timing.schedule,
        latency=timing.total,
        with_delays=timing.with_delays,
        lines=timing.lines,
        accuracy=result.final_accuracy,
        held_out=_accuracy(snn, t, images),
        events=end.spikes,
        sop=end.sop,
        neurons=sum(result.neurons.values()),
        seconds=perf_counter() - began,
    )


def _text(chain: Chain) -> str:
    """The settings of a chain in words."""
    parts = []
    for method in chain:
        settings = {k: v for k, v in methods.settings_of(method).items() if k not in ("base", "steps")}
        parts.append(f"{method.name}({', '.join(f'{k}={v}' for k, v in settings.items())})")
    return " + ".join(parts)


def show(records: Sequence[FewSteps], most_lines: int | None = None) -> str:
    """The table of the records, each network by true latency."""
    head = ["Network", "Method", "T", "pre", "Latency", "with delays", "Lines", "Accuracy", "ANN"]
    head += ["Events", "Neurons"]
    rows = []
    for r in records:
        for row in sorted(r.rows, key=lambda row: (row.latency, -row.accuracy)):
            if most_lines is None or row.lines <= most_lines:
                cells = [r.network, row.method, str(row.steps), str(row.pre), str(row.latency)]
                cells += [str(row.with_delays), str(row.lines), f"{row.accuracy:.2f}", f"{r.ann:.2f}"]
                rows.append([*cells, f"{row.events:,.0f}", f"{row.neurons:,}"])
    return table(head, rows)


def main() -> None:
    """Measure a network and write its record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="a trained network of the package, or a model with --weights")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--base", default="qcfs", help="the method that it was trained for")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--limit", type=int, help="number of test images; by default all")
    parser.add_argument("--calibration", type=int, default=1000, help="training images to fit to")
    parser.add_argument("--held-out", type=int, default=1000, help="training images to choose settings by")
    parser.add_argument("--fine-tune", type=int, default=0, help="epochs of fine_tune; 0 leaves it out")
    parser.add_argument("--steps", default=",".join(map(str, STEPS)))
    parser.add_argument("--rows", help="rows of the table, separated by semicolons; by default all")
    parser.add_argument("--batch-size", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--name", help="what to call the network; by default the model on the data")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    dataset = datasets.load(given.data, given.root)
    model = models.load_or_train(given.model, given.weights, dataset).eval().to(given.device)
    test = models.take(dataset.test, given.limit)
    some = models.take(dataset.train, given.calibration + given.held_out)
    x, y = some.normalise(some.images).to(given.device), some.labels.to(given.device)
    images = Images(
        x[: given.calibration],
        (x[given.calibration :], y[given.calibration :]),
        lambda: ((a.to(given.device), b) for a, b in test.batches(given.batch_size)),
        dataset.train if given.fine_tune else None,
    )
    network = given.name or f"{given.model} on {dataset.name}"
    out = given.out or RECORDS / f"few-steps-{network.replace(' on ', '-')}.json"
    record = FewSteps(
        network=network,
        ann=accuracy(model, test),
        samples=len(test),
        calibration=given.calibration,
        held_out=len(images.held_out[1]),
        device=torch.cuda.get_device_name() if given.device.startswith("cuda") else "CPU",
        versions=package_versions(),
        commit=find_commit(),
    )
    if out.exists():
        before = read_document(FewSteps, out)
        same = ("network", "samples", "calibration", "held_out", "device")
        if any(getattr(before, key) != getattr(record, key) for key in same):
            raise SystemExit(f"{out} is the record of another measurement: move it, or pass another --out")
        record = replace(record, rows=before.rows)
    record = measure(
        model,
        images,
        record,
        base=methods.get(given.base),
        steps=[int(t) for t in given.steps.split(",")],
        names=None if given.rows is None else [name.strip() for name in given.rows.split(";")],
        epochs=given.fine_tune,
        keep=lambda record: write_document(record, out),
    )
    print(f"{show([record])}\nwritten: {out}")


if __name__ == "__main__":
    main()
