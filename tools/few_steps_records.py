"""What `tools.few_steps` writes: one record for each trained network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rheobase.io import read_document
from tools.measured import RECORDS


@dataclass(frozen=True)
class Row:
    """One method at one number of steps.

    Attributes:
        method: What the table calls it.
        settings: The settings that were chosen, as text.
        steps: T as the method's paper counts it: the steps in which outputs are read, or, for `ltb`, all.
        pre: The steps before them, whose outputs do not count.
        schedule: "synchronous", or "windows" where each layer waits for its input.
        latency: The true latency in steps.
        with_delays: The same with one step of delay per layer.
        lines: Binary wires that a neuron drives.
        accuracy: On the test images, in percent.
        events: Mean spikes of an image, those before outputs count included.
        sop: Mean synaptic operations of an image.
        neurons: Binary neurons.
        loss: Mean cross-entropy on the images that settings were chosen by; None for longer runs, and in
            older records, also of rows that are trained after the conversion.
        held_out: Accuracy on these images in percent, by which older records chose.
        seconds: Duration of choice, conversions and test, shared by the rows that come from one run.
        device: What it ran on, if not where the record was begun.
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
    events: float
    sop: float
    neurons: int
    loss: float | None = None
    held_out: float | None = None
    seconds: float = 0.0
    device: str = ""


@dataclass(frozen=True)
class FewSteps:
    """All methods on one network.

    Attributes:
        network: The network and its data.
        ann: Accuracy of the ANN on the test images, in percent.
        samples: Number of test images.
        calibration: Number of training images that conversions were fitted to.
        held_out: Number of other training images that settings were chosen by.
        device: What the first rows, and the ANN, ran on.
        profile: The arithmetic.
        base: The method that the network was trained for, and that most rows correct.
        seed: The number of the training run, if there are several of the network.
        weights: The SHA-256 checksum of the trained weights; empty in older records.
        training: The settings of the training and of the method, as far as the file of the weights has them.
        rows: The measurements.
        versions: Versions of the packages that the first rows were measured with.
        commit: The commit of the source, if known.
    """

    network: str
    ann: float
    samples: int
    calibration: int
    held_out: int
    device: str
    profile: str = "exact"
    base: str = "qcfs"
    seed: int | None = None
    weights: str = ""
    training: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str = "unknown"


def load_records(folder: Path = RECORDS) -> list[FewSteps]:
    """All records, by network and training run."""
    found = [read_document(FewSteps, path) for path in sorted(folder.glob("few-steps-*.json"))]
    return sorted(found, key=lambda r: (r.network, r.seed or 0))
