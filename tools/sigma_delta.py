"""Measure sigma-delta conversions, and the table of docs/sigma-delta.md from the records.

`python -m tools.sigma_delta resnet20-cifar100 --data cifar100 --root FOLDER --levels 16 --sizes 4 --steps 16`
writes one record; `measure` does the same for any network and data.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rheobase import convert
from rheobase.analysis.certificate import at_once
from rheobase.analysis.costs import Latency, Silence, latency_of
from rheobase.cli import models
from rheobase.io import find_commit, package_versions, read_document, write_document
from rheobase.network import full_precision
from rheobase.simulation import Simulator
from rheobase.training import datasets
from tools.markdown import table
from tools.measured import MODELS, RECORDS, read

SHOWN = (2, 4, 6, 8, 10, 12)
Batches = Callable[[], Iterable[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class SumRecord:
    """One sigma-delta conversion over one test set.

    Attributes:
        network: The network and its data.
        levels: L.
        sizes: Number of sizes of an event; 0 for any.
        calibration: Number of calibration images.
        samples: Number of test images.
        profile: The arithmetic.
        device: What it ran on.
        ann: Accuracy of the ANN in percent.
        quantised: Accuracy of the quantised ANN, `snn.limit`, in percent.
        accuracy: Accuracy after each step.
        equal: Answers after each step that equal those of `snn.limit`, in percent.
        unequal: Number of final answers that differ from the quantised ANN computed by the same routines.
        last_event: Number of images whose last event was at each step.
        silence: The same as percentiles.
        timing: Latency and lines.
        events_per_neuron: Mean events of a neuron over the run.
        sop: Mean synaptic operations of an image.
        seconds: Duration of the simulation, without the conversion.
        notes: What the simulator could not do as fast.
        versions: Versions of the packages.
        commit: The commit of the source, if known.
    """

    network: str
    levels: int
    sizes: int
    calibration: int
    samples: int
    profile: str
    device: str
    ann: float
    quantised: float
    accuracy: list[float]
    equal: list[float]
    unequal: int
    last_event: list[int]
    silence: Silence
    timing: Latency
    events_per_neuron: float
    sop: float
    seconds: float
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = "unknown"


def measure(
    model: nn.Module,
    calibration: Tensor,
    test: Batches,
    *,
    network: str,
    levels: int,
    sizes: int | Literal["any"],
    steps: int,
    profile: str = "exact",
) -> SumRecord:
    """Convert a network and compare it with its ANN and its quantised ANN.

    Args:
        model: The ANN, on its device.
        calibration: Calibration inputs, on the same device. Never test images.
        test: Yields batches of test inputs and labels, on any device, each time it is called.
        network: What to call the network in the record.
        levels: L.
        sizes: Number of sizes of an event.
        steps: The bound on the number of steps.
        profile: The arithmetic.
    """
    snn = convert(model, "sigma-delta", calibration, levels=levels, sizes=sizes, progress=False)
    right = torch.zeros(2, dtype=torch.int64)
    accurate, equal = torch.zeros(2, steps, dtype=torch.int64)
    last, events, sop, unequal, samples, seconds = torch.zeros(steps, dtype=torch.int64), 0, 0.0, 0, 0, 0.0
    simulator = reference = None
    for images, labels in test():
        x, y = images.to(snn.device), labels.to(snn.device)
        with torch.inference_mode(), full_precision(snn.device):
            plain, quantised = model(x).argmax(1), snn.limit(x.to(snn.dtype)).argmax(1)
        if simulator is None or reference is None:
            simulator = Simulator(snn, x, steps, profile=profile, count_operations=True)
            reference = Simulator(at_once(snn), x, 1, profile=profile, count_spikes=False)
        _wait(snn.device)
        began = perf_counter()
        run = simulator.run(x)
        answers = run.logits.argmax(-1)
        _wait(snn.device)
        seconds += perf_counter() - began
        assert run.last_event is not None
        right += torch.stack([(plain == y).sum(), (quantised == y).sum()]).cpu()
        accurate += (answers == y).sum(1).cpu()
        equal += (answers == quantised).sum(1).cpu()
        unequal += int((answers[-1] != reference.run(x).logits[-1].argmax(-1)).sum())
        last += torch.bincount(run.last_event.cpu() - 1, minlength=steps)
        events += sum(int(counts.sum()) for counts in run.spikes.values())
        sop += float(run.sop.sum())
        samples += len(x)
    assert simulator is not None
    assert simulator.synapses is not None
    neurons = sum(simulator.synapses.fan_out[site].numel() for site in snn.sites)
    silence = Silence.of(last.tolist(), samples)
    return SumRecord(
        network=network,
        levels=levels,
        sizes=0 if sizes == "any" else sizes,
        calibration=len(calibration),
        samples=samples,
        profile=profile,
        device=torch.cuda.get_device_name(snn.device) if snn.device.type == "cuda" else "CPU",
        ann=100 * right[0].item() / samples,
        quantised=100 * right[1].item() / samples,
        accuracy=(100 * accurate.double() / samples).tolist(),
        equal=(100 * equal.double() / samples).tolist(),
        unequal=unequal,
        last_event=last.tolist(),
        silence=silence,
        timing=latency_of(snn, silence.largest or steps),
        events_per_neuron=events / samples / neurons,
        sop=sop / samples,
        seconds=seconds,
        notes=list(simulator.notes),
        versions=package_versions(),
        commit=find_commit(),
    )


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def load_records(pattern: str = "sigma-delta*.json") -> list[SumRecord]:
    """All records, by network, levels and sizes."""
    found = [read_document(SumRecord, path) for path in RECORDS.glob(pattern)]
    return sorted(found, key=lambda r: (r.network, r.levels, r.sizes or 99, r.profile))


def measured() -> str:
    """The table of measured conversions."""
    return show(load_records())


def show(records: list[SumRecord]) -> str:
    """A table of records."""
    if not records:
        return "Nothing has been measured yet."
    head = ["Network", "L", "sizes", "profile", "ANN", "quantised", *(f"T={t}" for t in SHOWN)]
    head += ["silent: median", "99.9 %", "all", "events per neuron"]
    rows = []
    for r in records:
        curve = [f"{r.accuracy[min(t, len(r.accuracy)) - 1]:.2f}" for t in SHOWN]
        silence = (r.silence.median, r.silence.most, r.silence.largest)
        silent = [f"> {r.silence.bound}" if t is None else str(t) for t in silence]
        cells = [_title(r.network), str(r.levels), str(r.sizes or "any"), r.profile]
        cells += [f"{r.ann:.2f}", f"{r.quantised:.2f}", *curve, *silent]
        rows.append([*cells, f"{r.events_per_neuron:.2f}"])
    unequal, answers = (
        sum(counts) for counts in zip(*((r.unequal, r.samples) for r in records), strict=True)
    )
    return (
        f"{table(head, rows)}\n\nAccuracy in percent; ANN and quantised ANN in single precision. "
        f"{unequal:,} of {answers:,} final answers differ from those of the quantised ANN in the arithmetic "
        f"of the row. Lines per neuron: twice the sizes. Measured on: {_machines(records)}."
    )


def _title(network: str) -> str:
    """A network of a record as it is printed."""
    model, _, rest = network.partition(" on ")
    data, comma, more = rest.partition(", ")
    if model.endswith(f"-{data}"):
        model, comma, more = model.removesuffix(f"-{data}"), ", ", "in the package"
    return f"{label(model)} on {label(data)}{comma}{more}"


def _machines(records: list[SumRecord]) -> str:
    """What the records were measured on, each with its models if there are several."""
    found: dict[str, list[str]] = {}
    for r in records:
        models = found.setdefault(f"{r.device}, torch {r.versions['torch']}", [])
        if (model := _title(r.network).partition(",")[0]) not in models:
            models.append(model)
    shown = (f"{machine} ({', '.join(models)})" for machine, models in sorted(found.items()))
    return "; ".join(found if len(found) == 1 else shown)


def trained() -> str:
    """The table of networks trained with quantised clips."""
    found = read("sigma-delta-trained-h200")
    shown = (2, 3, 4, 6, 10, 14)
    head = ["Network", "sizes", "profile", "ANN", *(f"T={t}" for t in shown)]
    head += ["silent: median", "99.9 %", "all", "events per neuron"]
    rows = []
    for r in sorted(found["rows"], key=lambda r: (r["dataset"], r["network"], -r["sizes"], r["profile"])):
        curve = [f"{r['accuracy'][min(t, len(r['accuracy'])) - 1]:.2f}" for t in shown]
        silence = [f"{r['silence'][key]:.0f}" for key in ("median", "p99.9", "max")]
        name = f"{label(r['network'])} on {label(r['dataset'])}, {r['epochs']} epochs"
        cells = [name, str(r["sizes"]), r["profile"], f"{r['ann']:.2f}", *curve, *silence]
        rows.append([*cells, f"{r['events_per_neuron']:.2f}"])
    return (
        f"{table(head, rows)}\n\nAccuracy in percent of all {rows and found['rows'][0]['images']:,} test "
        f"images, {_machine(found)}. The ANN ran with PyTorch's defaults, which on this GPU round the inputs "
        "of convolutions to TF32; `exact` and `int8` round differently. Values near the border between two "
        "levels can then get another level, so the accuracies differ by some tenths of a point."
    )


def imagenet() -> str:
    """The table of EfficientNet-Lite0 on 1,000 ImageNet images."""
    found = read("sigma-delta-efficientnet-lite0-h200")
    shown = (4, 6, 8, 9, 10, 12)
    head = [
        "L",
        "sizes",
        *(f"T={t}" for t in shown),
        "at the end",
        "silent: median",
        "all",
        "events per neuron",
    ]
    rows = []
    for r in found["rows"]:
        if r["profile"] != "exact":
            continue
        silent = [
            f"{t:.0f}" if t < len(r["right"]) else f"> {len(r['right'])}" for t in r["last_event"].values()
        ]
        curve = [str(r["right"][t - 1]) for t in (*shown, len(r["right"]))]
        rows.append(
            [str(r["levels"]), str(r["sizes"]), *curve, silent[0], silent[2], f"{r['events_per_neuron']:.2f}"]
        )
    seconds = max(r["convert_seconds"] for r in found["rows"])
    return (
        f"{table(head, rows)}\n\nCorrect answers among {found['images']:,} validation images, one of each "
        f"class; the ANN has {found['ann_right']}. {found['calibration']} other images for calibration, "
        f"without labels. A conversion took at most {seconds:.1f} s. {_machine(found)}."
    )


def speed() -> str:
    """The table of speeds beside the compiled ANN."""
    found = read("sigma-delta-speed-h200")
    rows = []
    for network in dict.fromkeys(r["network"] for r in found["rows"]):
        by = {r["profile"]: r for r in found["rows"] if r["network"] == network}
        times = [f"{by[p]['ms']:.1f} ({by[p]['ms_prepared']:.1f})" for p in ("exact", "fast", "int8")]
        rows.append([label(network), *times, f"{by['ANN']['ms']:.1f}"])
    head = ["Milliseconds", "exact", "fast", "int8", f"ANN, {found['steps']} times"]
    images = found["rows"][0]["images"]
    return (
        f"{table(head, rows)}\n\nPer batch of {found['batch']}: `evaluate` of {images:,} images with "
        f"all counts. In parentheses: a prepared `Simulator` that counts nothing. T = {found['steps']}, L = "
        f"{found['levels']}, {found['sizes']} sizes, random weights. The ANN in bfloat16, compiled and "
        f"captured as a CUDA graph. {_machine(found)}."
    )


def label(name: str) -> str:
    """The name of a network or dataset as it is printed."""
    names = MODELS | {"vit": "ViT", "convnext": "ConvNeXt"}
    return names.get(name, name.replace("cifar", "CIFAR-"))


def _machine(found: dict[str, Any]) -> str:
    return f"{found['device']}, torch {found['torch']}"


BLOCKS: dict[str, Callable[[], str]] = {
    "sigma-delta": measured,
    "sigma-delta-trained": trained,
    "sigma-delta-imagenet": imagenet,
    "sigma-delta-speed": speed,
}


def main() -> None:
    """Measure one conversion and write its record."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("model", help="a trained network of the package, or a model with --weights")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--limit", type=int, help="number of test images; by default all")
    parser.add_argument("--calibration", type=int, default=512, help="number of training images")
    parser.add_argument("--levels", type=int, default=32)
    parser.add_argument("--sizes", default="5", help="a number, or any")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--profile", default="exact")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    dataset = datasets.load(given.data, given.root)
    model = models.load_or_train(given.model, given.weights, dataset).eval().to(given.device)
    test = models.take(dataset.test, given.limit)
    calibration = models.take(dataset.train, given.calibration)
    record = measure(
        model,
        calibration.normalise(calibration.images).to(given.device),
        lambda: test.batches(given.batch_size),
        network=f"{given.model} on {dataset.name}",
        levels=given.levels,
        sizes="any" if given.sizes == "any" else int(given.sizes),
        steps=given.steps,
        profile=given.profile,
    )
    name = f"sigma-delta-{given.model}-{dataset.name}-L{given.levels}-n{given.sizes}-{given.profile}.json"
    out = given.out or RECORDS / name
    write_document(record, out)
    print(f"{record.accuracy}\n{record.silence}\nwritten: {out}")


if __name__ == "__main__":
    main()
