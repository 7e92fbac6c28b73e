"""Fit an early-exit rule: find the level that loses no more than a given accuracy, on training data.

One run without exits shows what every level would have done: apart from rounding, a sample's outputs do not
depend on the rest of the batch.

Shape letters: T steps, B samples.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.analysis.evaluation import Evaluation
from rheobase.analysis.metrics import check_labels
from rheobase.io import Data, batches
from rheobase.network import SNN, classes_of, expect_snn
from rheobase.simulation import Exit, Simulator

_LEVELS = 256

_RISK = 0.1
"""How often the true loss of a fitted rule may exceed the promised one."""


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

    The promise is about other inputs of the same kind: with 90 % confidence, leaving early makes at most
    `loss` percent of the answers wrong that would be right after all steps. A quarter of the inputs orders
    the candidates, from the most mean steps to the fewest: for each mean number of steps the one that makes
    fewest answers wrong. The other inputs test them in that order, and the last one before the first failure
    is chosen. The order does not depend on the inputs of the test, so the confidence holds for the chosen
    rule, for any number of candidates.

    Args:
        snn: The network.
        calibration: Training inputs, with labels if there are any; preferably inputs that the network was not
            trained on, as it is more certain of those it was. Never test data.
        rule: The kind of rule: `Margin`, `Confidence` or `Patience`.
        steps: The largest number of steps of a sample.
        loss: Points of accuracy that may be lost compared with all steps for every sample. Without labels,
            the percentage of answers that may change. With 0, no answer of the inputs given changes; that
            promises nothing about others.
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
    return _choose(runs, rule, loss)


def least_loss(inputs: int) -> float:
    """The smallest loss above 0 that `fit_exit` can promise with so many inputs, in hundredths of a point."""
    tested = 3 * inputs // 4
    return math.ceil(1e4 * (1 - _RISK ** (1 / tested))) / 100 if tested else 100.0


def _choose(runs: "_Runs", rule: type[Exit], loss: float) -> Exit:
    if loss == 0:
        points = _weigh_levels(runs, rule)
        return min((p for p in points if p.spoiled == 0), key=lambda p: (p.mean_steps, -p.rule.level)).rule
    ordering_B = torch.arange(runs.right.shape[1], device=runs.right.device) % 4 == 0
    tested = runs.pick(~ordering_B)
    samples = tested.right.shape[1]
    if not _shows(0, samples, loss):
        least = least_loss(len(ordering_B))
        needed = math.ceil(4 / 3 * math.log(_RISK) / math.log1p(-loss / 100)) + 4
        raise ValueError(
            f"{len(ordering_B)} inputs cannot show a loss as small as {loss:g} points: pass at least "
            f"{needed}, or allow {least:.2f} points (loss=, or --lose)"
        )
    chosen = rule(torch.inf)
    for candidate in _order(_weigh_levels(runs.pick(ordering_B), rule)):
        if not _shows(tested.count_spoiled(candidate), samples, loss):
            break
        chosen = candidate
    return chosen


def _shows(spoiled: int, samples: int, loss: float) -> bool:
    """Whether so few spoiled answers are unlikely where the true percentage is above the loss."""
    share = loss / 100
    if share >= 1:
        return True
    chances = (
        math.lgamma(samples + 1) - math.lgamma(k + 1) - math.lgamma(samples - k + 1)
        + k * math.log(share) + (samples - k) * math.log1p(-share)
        for k in range(spoiled + 1)
    )  # fmt: skip
    return sum(map(math.exp, chances)) <= _RISK


def _order(points: list["_Point"]) -> list[Exit]:
    """The candidates from the most mean steps to the fewest, the safest one for each quarter of a step."""
    best: dict[int, _Point] = {}
    for point in points:
        place = math.ceil(4 * point.mean_steps)
        rank = (point.spoiled, -point.mean_steps)
        if place not in best or rank < (best[place].spoiled, -best[place].mean_steps):
            best[place] = point
    return [best[place].rule for place in sorted(best, reverse=True)]


@dataclass(frozen=True)
class _Runs:
    """The score of every sample after every step, and whether its answer was right, (T, B) each."""

    score: Tensor
    right: Tensor

    def pick(self, chosen_B: Tensor) -> "_Runs":
        """Some of the samples."""
        return _Runs(self.score[:, chosen_B], self.right[:, chosen_B])

    def count_spoiled(self, rule: Exit) -> int:
        """How many answers a rule spoils: right at the end, and wrong when the sample leaves."""
        leave_B = _next_exit(self.score >= rule.level)[rule.after - 1]
        right_B = self.right.gather(0, leave_B[None])[0]
        return int((self.right[-1] & ~right_B).sum())


def _run(snn: SNN, data: Data, kind: type[Exit], steps: int, batch_size: int | None, profile: str) -> _Runs:
    expect_snn(snn)
    if not isinstance(kind, type) or not issubclass(kind, Exit):
        raise TypeError(
            f"rule must be a class: rheobase.Margin, rheobase.Confidence or rheobase.Patience; got {kind!r}"
        )
    if snn.delay:
        raise ValueError(
            f"the outputs of this network count after {snn.delay} steps, and exit rules need an answer after "
            "every step: convert by a method without a delay"
        )
    rule = kind(torch.inf)
    scores, right, first = [], [], 0
    for x, y in batches(data, batch_size, what="calibration data"):
        logits = Simulator(snn, x.to(snn.device), steps, profile=profile).run(x.to(snn.device), first).logits
        if len(logits) != steps:
            raise ValueError("this network's neurons answer at the last step only: no sample can leave early")
        if y is not None:
            check_labels(y, logits)
        answers, state = classes_of(logits, by_step=True).cpu(), dict[str, Tensor]()
        scores.append(torch.stack([rule.score(mean, state) for mean in logits]).cpu())
        right.append(answers == (answers[-1] if y is None else y.cpu()))
        first += x.shape[0]
    return _Runs(torch.cat(scores, 1), torch.cat(right, 1))


@dataclass(frozen=True)
class _Point:
    """The result of a rule with one level.

    Attributes:
        rule: The rule.
        mean_steps: Mean steps of a sample.
        spoiled: Percentage of answers that would have been right at the end and are not.
    """

    rule: Exit
    mean_steps: float
    spoiled: float


def _weigh_levels(runs: _Runs, rule: type[Exit]) -> list[_Point]:
    """Every level with every first step, and the rule that never applies."""
    steps, last_B = len(runs.score), runs.right[-1]
    points = [_Point(rule(torch.inf), steps, 0.0)]
    for level in _levels(runs.score):
        leave_TB = _next_exit(runs.score >= level)
        right_TB = runs.right.gather(0, leave_TB)
        columns = (leave_TB + 1).double(), 100 * (last_B & ~right_TB).double()
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
        steps=saved(a.mean_steps, b.mean_steps),
        spikes=saved(a.spikes, b.spikes),
        sop=saved(a.sop, b.sop),
        joules=saved(a.joules, b.joules),
        seconds=saved(full.seconds, early.seconds),
        loss=full.final_accuracy - early.final_accuracy,
    )
