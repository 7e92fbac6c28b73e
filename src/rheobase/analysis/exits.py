"""Fitting an exit: the level with which a rule loses no more than a stated accuracy, found on training data.

One run without exits tells what every level would have done, as a sample's outputs do not depend on who else
is in the batch, but for rounding.

Shape letters: T steps, B samples.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rheobase.analysis.evaluation import Evaluation, check_labels
from rheobase.io import batches
from rheobase.network import SNN, expect_snn
from rheobase.simulation import Exit, simulate

_LEVELS = 256

_DEVIATIONS = 1.2816
"""Of a normal distribution, 90 % lie below so many standard deviations above its mean."""


@dataclass(frozen=True)
class Point:
    """What a rule gives with one level.

    Attributes:
        rule: The rule.
        latency: Mean steps of a sample.
        accuracy: Percent right; without labels, percent with the answer they would have had at the end.
        spoiled: Percent that would have been right at the end, but are not.
    """

    rule: Exit
    latency: float
    accuracy: float
    spoiled: float


def fit_exit(
    snn: SNN,
    calibration: Any,
    rule: type[Exit],
    *,
    steps: int,
    loss: float = 0.2,
    batch_size: int | None = None,
    profile: str = "exact",
) -> Exit:
    """The rule with the fewest mean steps that loses no more than so much accuracy.

    A few inputs cannot show a small loss. So what counts is not the loss on them, but what it may be on
    others: the upper end of Wilson's 90 % interval for the share of answers that leaving early spoils.

    Args:
        snn: The network.
        calibration: Training inputs, with labels if there are any; best some that the network was not trained
            on, as it is surer of those it was. Never test data.
        rule: Which kind of rule: `Margin`, `Confidence` or `Patience`.
        steps: How many steps a sample takes at most.
        loss: How many points of accuracy may be lost against all steps for every sample. Without labels, how
            many percent of the answers may change.
        batch_size: Inputs at a time, where the data does not come in batches.
        profile: The arithmetic the network shall run in, as in `simulate`: a level holds in its own only.

    Returns:
        The rule with its level, and the step after which it begins. If no exit is safe, it never fires.

    Raises:
        ValueError: If there are too few inputs to show such a loss.
    """
    if not loss >= 0:
        raise ValueError(f"loss is in points of accuracy and at least 0, got {loss!r}")
    runs = _run(snn, calibration, rule, steps, batch_size, profile)
    samples = runs.right.shape[1]
    if loss > 0 and _upper(0, samples) > loss:
        needed = math.ceil((100 / loss - 1) * _DEVIATIONS**2)
        raise ValueError(
            f"{samples} inputs cannot show a loss as small as {loss:g} points: give at least {needed}, or "
            "allow a larger loss"
        )
    points = _weigh_levels(runs, rule)
    safe = [p for p in points if p.spoiled == 0 or _upper(p.spoiled, samples) <= loss]
    return min(safe, key=lambda p: (p.latency, -p.accuracy, -p.rule.level)).rule


def _upper(spoiled: float, samples: int) -> float:
    """The upper end of Wilson's interval for a percentage seen in so many samples."""
    share, square = spoiled / 100, _DEVIATIONS**2
    spread = math.sqrt(share * (1 - share) / samples + square / (4 * samples**2))
    return 100 * (share + square / (2 * samples) + _DEVIATIONS * spread) / (1 + square / samples)


def trade_off(
    snn: SNN,
    data: Any,
    rule: type[Exit],
    *,
    steps: int,
    batch_size: int | None = None,
    profile: str = "exact",
) -> list[Point]:
    """Accuracy against mean latency for many levels of a rule and every first step, from one run."""
    return _weigh_levels(_run(snn, data, rule, steps, batch_size, profile), rule)


@dataclass(frozen=True)
class _Runs:
    """The score of every sample after every step, and whether its answer was right, (T, B) each."""

    score: Tensor
    right: Tensor


def _run(snn: SNN, data: Any, kind: type[Exit], steps: int, batch_size: int | None, profile: str) -> _Runs:
    expect_snn(snn)
    if not isinstance(kind, type) or not issubclass(kind, Exit):
        raise TypeError(f"the rule is a class, as rheobase.Margin, Confidence or Patience; got {kind!r}")
    rule = kind(torch.inf)
    scores, right, first = [], [], 0
    for x, y in batches(data, batch_size, what="calibration data"):
        logits = simulate(snn, x.to(snn.device), steps, first_sample=first, profile=profile).logits
        if len(logits) != steps:
            raise ValueError("this network's neurons answer at the last step only: no sample can leave early")
        if y is not None:
            check_labels(y, logits)
        state: dict[str, Tensor] = {}
        scores.append(torch.stack([rule.score(mean, state) for mean in logits]).cpu())
        answers = logits.argmax(-1).cpu()
        right.append(answers == (answers[-1] if y is None else y.cpu()))
        first += x.shape[0]
    return _Runs(torch.cat(scores, 1), torch.cat(right, 1))


def _weigh_levels(runs: _Runs, rule: type[Exit]) -> list[Point]:
    steps, last_B = len(runs.score), runs.right[-1]
    points = [Point(rule(torch.inf), steps, 100 * last_B.double().mean().item(), 0.0)]
    for level in _levels(runs.score):
        leave_TB = _next_exit(runs.score >= level)
        right_TB = runs.right.gather(0, leave_TB)
        columns = ((leave_TB + 1).double(), 100 * right_TB.double(), 100 * (last_B & ~right_TB).double())
        rows = zip(*(column.mean(1).tolist() for column in columns), strict=True)
        points += [Point(rule(level, after), *row) for after, row in enumerate(rows, start=1)]
    return points


def _levels(scores_TB: Tensor) -> list[float]:
    """Levels to try: scores that occur, evenly by rank."""
    found = torch.unique(scores_TB)
    # Single precision cannot number as many scores as a long run over a large dataset has.
    ranks = torch.linspace(
        0, len(found) - 1, min(len(found), _LEVELS), dtype=torch.float64, device=found.device
    )
    return [float(level) for level in found[ranks.round().long()]]


def _next_exit(hit_TB: Tensor) -> Tensor:
    """For each step the first one from there on with a hit, counted from 0; the last where there is none."""
    last = hit_TB.shape[0] - 1
    found_TB = torch.full(hit_TB.shape, last, device=hit_TB.device)
    for t in reversed(range(last)):
        found_TB[t] = torch.where(hit_TB[t], t, found_TB[t + 1])
    return found_TB


@dataclass(frozen=True)
class Saving:
    """What an early exit spared, each as a share of the run without it; and what it cost.

    Attributes:
        steps: Of mean steps.
        spikes: Of spikes.
        sop: Of synaptic operations.
        joules: Of energy.
        seconds: Of time.
        loss: Points of accuracy.
    """

    steps: float
    spikes: float
    sop: float
    joules: float
    seconds: float
    loss: float


def compare_exit(full: Evaluation, early: Evaluation) -> Saving:
    """What an evaluation with an exit spared against one without, over all their steps."""

    def spared(a: float, b: float) -> float:
        return 1 - b / a if a else 0.0

    return Saving(
        steps=spared(full.latency[-1], early.latency[-1]),
        spikes=spared(full.spikes_per_image[-1], early.spikes_per_image[-1]),
        sop=spared(full.sop[-1], early.sop[-1]),
        joules=spared(full.joules[-1], early.joules[-1]),
        seconds=spared(full.seconds, early.seconds),
        loss=full.accuracy[-1] - early.accuracy[-1],
    )
