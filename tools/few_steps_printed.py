"""Accuracies that papers print for few steps, beside which ours stand.

They are read with what their number of steps leaves out: steps before outputs count, layers that wait,
several lines per neuron. Nothing here is measured by this package.
"""

from dataclasses import dataclass
from typing import Literal

Source = Literal["paper", "code", "note", "thesis", "memory"]
SOURCES: dict[Source, str] = {
    "paper": "the paper's own text or table",
    "code": "the README of the authors' code",
    "note": "a survey, a repository or a note of a third party",
    "thesis": "an unpublished thesis of 2026 with logged runs",
    "memory": "from memory, not checked",
}


@dataclass(frozen=True)
class Printed:
    """One row of a paper.

    Attributes:
        network: The network and its data.
        system: What the paper calls it.
        method: Our row that is most like it; None if there is none.
        accuracy: In percent, by the printed number of steps.
        ann: Accuracy of its own ANN, if it is known.
        source: Where the numbers are from.
        pre: Steps before outputs count, which the printed number leaves out.
        waits: Whether each layer waits for its whole input.
        lines: Binary wires of a neuron.
    """

    network: str
    system: str
    method: str | None
    accuracy: dict[int, float]
    ann: float | None
    source: Source
    pre: int = 0
    waits: bool = False
    lines: int = 1


def _row(*values: float | None) -> dict[int, float]:
    """Accuracies at T = 1, 2, 4 and so on."""
    return {2**i: value for i, value in enumerate(values) if value is not None}


_VGG10, _RES18_10, _RES20_10 = (f"{name} on CIFAR-10" for name in ("VGG-16", "ResNet-18", "ResNet-20"))
_VGG100, _RES18_100, _RES20_100 = (f"{name} on CIFAR-100" for name in ("VGG-16", "ResNet-18", "ResNet-20"))
_BOTH = "signed + ftbc"

PRINTED: tuple[Printed, ...] = (
    Printed(_VGG10, "QCFS", "qcfs", _row(None, 91.18, 93.96, 94.95, 95.40, 95.54), 95.52, "paper"),
    Printed(
        _VGG10, "QCFS, run again", "qcfs", _row(88.24, 91.03, 93.74, 94.87, 95.33, 95.52), 95.51, "thesis"
    ),
    Printed(
        _VGG10, "QCFS + FTBC + R0", "ftbc", _row(89.87, 91.98, 94.27, 95.24, 95.51, 95.47), 95.51, "thesis"
    ),
    Printed(
        _VGG10,
        "QCFS + FTBC + HA-SNM + R0",
        _BOTH,
        _row(89.87, 92.35, 94.72, 95.54, 95.56, 95.58),
        95.51,
        "thesis",
        lines=2,
    ),
    Printed(_VGG10, "SlipReLU", None, _row(88.17, 89.57, 91.08, 92.26, 92.96, 93.19), 93.02, "memory"),
    Printed(_VGG10, "SRP, τ = 4", "srp", _row(93.80, 94.47, 95.32, 95.52), 95.52, "memory", pre=4),
    Printed(_VGG10, "COS, ρ = 4", "cos", _row(94.90, 95.36, 95.46, 95.51), 95.51, "memory", pre=4),
    Printed(_VGG10, "Parallel", "parallel", {4: 95.50}, 95.5, "note", waits=True),
    Printed(_RES18_10, "SlipReLU", None, _row(93.11, 93.97, 94.59, 94.92), 94.61, "memory"),
    Printed(_RES18_10, "ECL", None, {2: 94.75}, None, "paper", lines=2),
    Printed(_RES18_10, "CS-QCFS, network not named", None, {1: 95.86}, None, "note"),
    Printed(_RES18_10, "SRP, τ = 4", "srp", _row(94.59, 95.06, 95.25, 95.60), 95.64, "memory", pre=4),
    Printed(_RES18_10, "COS, ρ = 4", "cos", _row(95.25, 95.45, 95.45, 95.68), 95.64, "memory", pre=4),
    Printed(_RES18_10, "Fast-SNN", "signed", {3: 95.42}, None, "paper", lines=2),
    Printed(_RES20_10, "QCFS", "qcfs", _row(None, 73.20, 83.75, 89.55, 91.62, 92.24), 91.77, "paper"),
    Printed(_RES20_10, "SRP, τ = 4", "srp", _row(86.37, 88.73, 90.57, 91.37), 91.77, "memory", pre=4),
    Printed(_RES20_10, "COS, ρ = 4", "cos", _row(89.88, 91.26, 91.88, 92.14), 91.77, "memory", pre=4),
    Printed(_VGG100, "QCFS", "qcfs", _row(None, 63.79, 69.62, 73.96, 76.24, 77.01), 76.28, "paper"),
    Printed(
        _VGG100, "QCFS, run again", "qcfs", _row(58.81, 64.85, 70.50, 74.63, 76.62, 77.60), 77.35, "thesis"
    ),
    Printed(
        _VGG100, "QCFS, trained again", "qcfs", _row(43.08, 52.73, 63.49, 71.77, 75.71, 76.87), 77.15, "note"
    ),
    Printed(_VGG100, "QCFS, run by LM-HT", "qcfs", _row(None, 64.85, 70.50, 74.63), 77.31, "paper"),
    Printed(
        _VGG100, "QCFS with 4 levels, run by LM-HT", None, _row(None, 63.33, 69.70, 74.12), None, "paper"
    ),
    Printed(
        _VGG100,
        "QCFS + signed + R0",
        "signed",
        _row(58.81, 65.03, 72.33, 76.63, 77.51, 77.47),
        77.35,
        "thesis",
        lines=2,
    ),
    Printed(_VGG100, "QCFS + FTBC", "ftbc", _row(62.08, 68.04, 72.66, 76.16, 77.58, 77.80), 77.35, "thesis"),
    Printed(
        _VGG100,
        "QCFS + signed + R0 + FTBC",
        _BOTH,
        _row(62.14, 68.43, 73.88, 77.22, 77.65, 77.81),
        77.35,
        "thesis",
        lines=2,
    ),
    Printed(
        _VGG100,
        "QCFS + signed + R0 + FTBC + HA",
        _BOTH,
        _row(None, 69.27, 74.56, 77.40),
        77.35,
        "thesis",
        lines=2,
    ),
    Printed(_VGG100, "SRP, τ = 4", "srp", _row(71.52, 74.31, 75.42, 76.25), 76.28, "code", pre=4),
    Printed(_VGG100, "COS, ρ = 4", "cos", _row(74.24, 76.03, 76.26, 76.52), 76.28, "code", pre=4),
    Printed(
        _VGG100, "LM-HT hybrid, 2 levels", None, {2: 76.31, 4: 76.79}, 77.31, "paper", waits=True, lines=2
    ),
    Printed(_VGG100, "SNM", "signed", {32: 71.80}, 74.13, "paper", lines=2),
    Printed(_RES20_100, "QCFS", "qcfs", _row(None, 19.96, 34.14, 55.37, 67.33, 69.82), 69.94, "paper"),
    Printed(_RES20_100, "QCFS, run by LM-HT", "qcfs", _row(None, 19.76, 34.17, 55.50), 69.56, "paper"),
    Printed(
        _RES20_100, "QCFS with 4 levels, run by LM-HT", None, _row(None, 38.04, 52.28, 61.77), 63.90, "paper"
    ),
    Printed(
        _RES20_100,
        "QCFS + FTBC + R0",
        "ftbc",
        _row(14.66, 22.69, 38.81, 59.15, 67.58, 69.37),
        68.68,
        "thesis",
    ),
    Printed(
        _RES20_100,
        "QCFS + signed + R0 + FTBC + HA",
        _BOTH,
        _row(14.66, 25.0, 42.7, 62.9, 66.7, 68.3),
        68.68,
        "thesis",
        lines=2,
    ),
    Printed(_RES20_100, "SRP, τ = 4", "srp", _row(46.48, 53.96, 59.34, 62.94), 69.94, "code", pre=4),
    Printed(_RES20_100, "COS, ρ = 4", "cos", _row(59.22, 64.21, 65.18, 67.17), 69.9, "code", pre=4),
    Printed(_RES20_100, "Parallel", "parallel", {8: 69.62}, 69.94, "note", waits=True),
    Printed(
        _RES20_100, "LM-HT hybrid, 2 levels", None, {2: 67.08, 4: 69.00}, 69.56, "paper", waits=True, lines=2
    ),
    Printed(_RES18_100, "QCFS", "qcfs", _row(None, 70.79, 75.67, 78.48, 79.48, 79.62), 78.80, "paper"),
    Printed(
        _RES18_100,
        "QCFS, trained again, seed 42",
        "qcfs",
        _row(39.53, 54.20, 67.04, 75.47, 79.34, 79.93),
        79.59,
        "note",
    ),
    Printed(
        _RES18_100,
        "QCFS, trained again, seed 100",
        "qcfs",
        _row(43.64, 58.15, 69.13, 76.66, 78.93, 79.78),
        79.73,
        "note",
    ),
)
