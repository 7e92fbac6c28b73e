"""Fit an early-exit rule: find the level that loses no more than a given accuracy, on training data.

One run without exits shows what every level would have done: apart from rounding, a sample's outputs do not
depend on the rest of the batch.

Shape letters: T steps, B samples.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.analysis.evaluation import Evaluation, check_labels
from rheobase.io import Data, batches
from rheobase.network import SNN, expect_snn
from rheobase.simulation import Exit, simulate

_LEVELS = 256

_DEVIATIONS = 1.2816
"""90 % of a normal distribution lies below its mean plus this many standard deviations."""


def fit_exit(
    snn: SNN,
    calibration: Data,
    rule: type[Exit],
    *,
    steps: int,
    loss: float = 0.2,
    batch_size: int | None = None,
    profile: str = "exact",
) -> Exit:
    """The rule with the fewest mean steps that loses no more than the given accuracy.

    A few inputs cannot show a small loss. So the criterion is not the loss on them but its bound on others:
    the upper end of Wilson's 90 % interval for the share of answers that leaving early spoils.

    Args:
        snn: The network.
        calibration: Training inputs, with labels if there are any; preferably inputs that the network was not
            trained on, as it is more certain of those it was. Never test data.
        rule: The kind of rule: `Margin`, `Confidence` or `Patience`.
        steps: The largest number of steps of a sample.
        loss: Points of accuracy that may be lost compared with all steps for every sample. Without labels,
            the percentage of answers that may change.
        batch_size: Inputs at a time, where the data does not come in batches.
        profile: The arithmetic the network will run in, as in `simulate`; a level holds for its own only.

    Returns:
        The rule with its level and the first step at which it applies. If no exit is safe, it never applies.

    Raises:
        ValueError: There are too few inputs to show such a loss.
    """
    if not loss >= 0:
        raise ValueError(f"loss must be at least 0 points of accuracy, got {loss!r}")
    runs = _run(snn, calibration, rule, steps, batch_size, profile)
    samples = runs.right.shape[1]
    if loss > 0 and _upper(0, samples) > loss:
        needed = math.ceil((100 / loss - 1) * _DEVIATIONS**2)
        raise ValueError(
            f"{samples} inputs cannot show a loss as small as {loss:g} points: pass at least {needed}, or "
            "allow a larger loss"
        )
    points = _weigh_levels(runs, rule)
    safe = [p for p in points if p.spoiled == 0 or _upper(p.spoiled, samples) <= loss]
    return min(safe, key=lambda p: (p.latency, -p.accuracy, -p.rule.level)).rule


def _upper(spoiled: float, samples: int) -> float:
    """The upper end of Wilson's interval for a percentage measured on the given number of samples."""
    share, square = spoiled / 100, _DEVIATIONS**2
    spread = math.sqrt(share * (1 - share) / samples + square / (4 * samples**2))
    return 100 * (share + square / (2 * samples) + _DEVIATIONS * spread) / (1 + square / samples)


@dataclass(frozen=True)
class _Runs:
    """The score of every sample after every step, and whether its answer was right, (T, B) each."""

    score: Tensor
    right: Tensor


def _run(snn: SNN, data: Data, kind: type[Exit], steps: int, batch_size: int | None, profile: str) -> _Runs:
    expect_snn(snn)
    if not isinstance(kind, type) or not issubclass(kind, Exit):
        raise TypeError(f"rule must be a class: rheobase.Margin, Confidence or Patience; got {kind!r}")
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


@dataclass(frozen=True)
class _Point:
    """The result of a rule with one level.

    Attributes:
        rule: The rule.
        latency: Mean steps of a sample.
        accuracy: In percent; without labels, the percentage of answers that equal those at the end.
        spoiled: Percentage of answers that would have been right at the end and are not.
    """

    rule: Exit
    latency: float
    accuracy: float
    spoiled: float


def _weigh_levels(runs: _Runs, rule: type[Exit]) -> list[_Point]:
    """Every level with every first step, and the rule that never applies."""
    steps, last_B = len(runs.score), runs.right[-1]
    points = [_Point(rule(torch.inf), steps, 100 * last_B.double().mean().item(), 0.0)]
    for level in _levels(runs.score):
        leave_TB = _next_exit(runs.score >= level)
        right_TB = runs.right.gather(0, leave_TB)
        columns = ((leave_TB + 1).double(), 100 * right_TB.double(), 100 * (last_B & ~right_TB).double())
        rows = zip(*(column.mean(1).tolist() for column in columns), strict=True)
        points += [_Point(rule(level, after), *row) for after, row in enumerate(rows, start=1)]
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
    """For each step the next one with a hit, itself included, counted from 0; the last if there is none."""
    last = hit_TB.shape[0] - 1
    found_TB = torch.full(hit_TB.shape, last, device=hit_TB.device)
    for t in reversed(range(last)):
        found_TB[t] = torch.where(hit_TB[t], t, found_TB[t + 1])
    return found_TB


@dataclass(frozen=True)
class Saving:
    """What an early exit saves, each as a share of the run without it, and what it costs.

    Attributes:
        steps: Share of the mean steps.
        spikes: Share of the spikes.
        sop: Share of the synaptic operations.
        joules: Share of the energy.
        seconds: Share of the time.
        loss: Points of accuracy lost.
    """

    steps: float
    spikes: float
    sop: float
    joules: float
    seconds: float
    loss: float


def compare_exit(full: Evaluation, early: Evaluation) -> Saving:
    """Compare an evaluation with an exit rule with one without, over all their steps."""

    def saved(a: float, b: float) -> float:
        return 1 - b / a if a else 0.0

    a, b = full.at(full.steps), early.at(early.steps)
    return Saving(
        steps=saved(a.latency, b.latency),
        spikes=saved(a.spikes, b.spikes),
        sop=saved(a.sop, b.sop),
        joules=saved(a.joules, b.joules),
        seconds=saved(full.seconds, early.seconds),
        loss=full.final_accuracy - early.final_accuracy,
    )
