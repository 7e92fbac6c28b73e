"""Advice: which method, start, setting and number of steps to take for a given budget.

Candidates are converted on one part of the calibration data and measured on the other, from the cheap to the
costly: every method as its paper has it, then other starts of the best, then other settings. One run gives
the accuracy after every step; once some number of steps will do, others only run for fewer.
"""

import copy
import math
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from rheobase import methods
from rheobase.coding import ConstantCurrent
from rheobase.conversion import convert
from rheobase.datasets import batches
from rheobase.energy import PAPER, Convention, snn_joules
from rheobase.evaluation import Evaluation, evaluate
from rheobase.membrane import Half, Initial, Zero
from rheobase.methods import Method
from rheobase.snn import SNN

PERCENTILES = (99.0, 99.9, 99.99)

_STARTS_OF, _SETTINGS_OF = 3, 2


@dataclass(frozen=True)
class Budget:
    """What a conversion may cost; whatever is not given is free.

    With a loss of accuracy alone the fewest steps are looked for; with steps or joules alone the best
    accuracy; with both kinds the first conversion that keeps to all of them is taken.

    Attributes:
        accuracy_loss: Points of accuracy below the ordinary network.
        steps: Time steps.
        joules: Energy of an image.
    """

    accuracy_loss: float | None = None
    steps: int | None = None
    joules: float | None = None

    def __post_init__(self) -> None:
        if self.accuracy_loss is None and self.steps is None and self.joules is None:
            raise ValueError("an empty budget: give accuracy_loss=, steps= or joules=")
        if self.accuracy_loss is not None and not self.accuracy_loss >= 0:
            raise ValueError(f"accuracy_loss is in points and at least 0, got {self.accuracy_loss}")
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise ValueError(f"steps must be a whole number of at least 1, got {self.steps!r}")
        if self.joules is not None and not self.joules > 0:
            raise ValueError(f"joules must be above zero, got {self.joules}")

    def __str__(self) -> str:
        parts = {
            f"a loss of {self.accuracy_loss} points": self.accuracy_loss,
            f"{self.steps} steps": self.steps,
            f"{self.joules} J": self.joules,
        }
        return " and ".join(text for text, value in parts.items() if value is not None)


@dataclass(frozen=True)
class Trial:
    """One conversion that was tried.

    Attributes:
        method: The method with its settings.
        initial: The start.
        steps: After how many steps it does best within the budget; 0 if it was not measured.
        accuracy: Percent right then, on the part of the data that was held out.
        joules: Energy of an image up to then.
        met: Whether that keeps to the budget.
        note: Why it was not measured, if it was not.
    """

    method: Method
    initial: Initial
    steps: int = 0
    accuracy: float = 0.0
    joules: float = 0.0
    met: bool = False
    note: str = ""

    @property
    def name(self) -> str:
        """The method, its settings where they are not the usual ones, and the start."""
        usual = type(self.method).example()
        changed = [
            f" {f.name}={getattr(self.method, f.name)}"
            for f in fields(self.method)
            if getattr(self.method, f.name) != getattr(usual, f.name)
        ]
        return f"{self.method.name}{''.join(changed)}, start {self.initial}"

    def __str__(self) -> str:
        if self.note:
            return f"{self.name:<44} not measured: {shorten(self.note, 70, placeholder=' …')}"
        measured = f"{self.accuracy:6.2f} %  T = {self.steps:<4} {self.joules:9.3g} J"
        return f"{self.name:<44} {measured}{'  met' if self.met else ''}"


@dataclass(frozen=True)
class Advice:
    """What to take.

    Attributes:
        budget: What was asked for.
        met: Whether it can be had.
        snn: The conversion that was chosen: of those that keep to the budget the best, else the nearest.
        chosen: How it was made, and how well it does.
        ann: Percent right of the ordinary network on the held-out part.
        measure: What percentages mean: "accuracy", or "agreement" with the ordinary network where the data
            has no labels.
        trials: Everything that was tried, in order.
        verdict: In words.
    """

    budget: Budget
    met: bool
    snn: SNN = field(repr=False)
    chosen: Trial
    ann: float
    measure: str
    trials: list[Trial] = field(repr=False)
    verdict: str

    def __str__(self) -> str:
        return "\n".join([f"ordinary network: {self.ann:.2f} %", *map(str, self.trials), self.verdict])


def advise(
    ann: nn.Module,
    calibration: Any,
    budget: Budget,
    *,
    most_steps: int = 64,
    hold_out: float = 0.5,
    seed: int = 0,
    convention: Convention = PAPER,
    progress: bool = True,
) -> Advice:
    """Find a conversion of a network that keeps to a budget.

    Args:
        ann: The trained model. It is not changed.
        calibration: Training inputs, with labels if there are any. Never test data: conversions are fitted to
            one part of them and chosen by the other.
        budget: What it may cost.
        most_steps: How many steps to try at most where the budget does not say.
        hold_out: The share of the inputs to measure on.
        seed: Of the parting of the inputs; the same seed gives the same advice.
        convention: What an operation costs.
        progress: Whether to show each trial as it is done.

    Raises:
        ValueError: If no method can convert the model; the message says why for each.
    """
    parts, measure = _part(copy.deepcopy(ann).eval(), calibration, hold_out, seed)
    search = _Search(ann, parts, budget, budget.steps or most_steps, seed, convention, progress)
    for trial in search.candidates():
        search.try_out(trial)
        if search.done:
            break
    return search.conclude(measure)


@dataclass(frozen=True)
class _Parts:
    """The calibration data: what to fit to, what to measure on, and percent right of the ordinary network."""

    fit: Tensor
    held_out: tuple[Tensor, Tensor]
    ann: float


def _part(ann: nn.Module, calibration: Any, hold_out: float, seed: int) -> tuple[_Parts, str]:
    given = list(batches(calibration, what="calibration data"))
    device = next((p.device for p in ann.parameters()), given[0][0].device)
    x = torch.cat([x for x, _ in given]).to(device)
    labels = [y for _, y in given if y is not None]
    count = round(hold_out * len(x))
    if not 1 <= count < len(x):
        raise ValueError(f"holding out {hold_out:g} of {len(x)} inputs leaves none to fit or none to measure")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(device)
    held, rest = order[:count], order[count:].sort().values
    with torch.no_grad():
        answers = torch.cat([ann(part).argmax(-1) for part in torch.split(x[held], 128)])
    y = torch.cat(labels).to(device)[held] if labels else answers
    right = 100 * (answers == y).double().mean().item()
    return _Parts(x[rest], (x[held], y), right), "accuracy" if labels else "agreement"


class _Search:
    """Goes through candidates and remembers the best."""

    def __init__(
        self,
        ann: nn.Module,
        parts: _Parts,
        budget: Budget,
        horizon: int,
        seed: int,
        convention: Convention,
        progress: bool,
    ) -> None:
        self.ann, self.parts, self.budget, self.horizon = ann, parts, budget, horizon
        self.seed, self.convention, self.progress = seed, convention, progress
        self.trials: list[Trial] = []
        self.best: tuple[Trial, SNN] | None = None
        self.impossible = False

    def candidates(self) -> Iterator[Trial]:
        """What to try next, given what has been tried so far."""
        every = [self._aim(methods.find(name).example()) for name in methods.names()]
        for method in sorted(every, key=_cost):
            yield Trial(method, method.initial)
        for trial in self._ranked()[:_STARTS_OF]:
            for initial in (Half(), Zero()):
                yield Trial(trial.method, initial)
        for trial in self._ranked()[:_SETTINGS_OF]:
            for method in _variants(self._aim(trial.method)):
                yield Trial(method, trial.initial)

    def try_out(self, trial: Trial) -> None:
        """Convert, measure and note a candidate, unless it was tried before."""
        if any((t.method, str(t.initial)) == (trial.method, str(trial.initial)) for t in self.trials):
            return
        snn = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # dead channels show in the accuracy
                snn = convert(
                    self.ann, trial.method, self.parts.fit, initial=trial.initial, coding=ConstantCurrent()
                )
        except ValueError as error:
            trial = replace(trial, note=str(error))
        else:
            trial = self._measure(trial, snn)
        self.trials.append(trial)
        if snn is not None and not trial.note:
            self._keep_best(trial, snn)
        if self.progress:
            _show(trial)

    def _keep_best(self, trial: Trial, snn: SNN) -> None:
        if self.best is None or self._rank(trial) < self._rank(self.best[0]):
            self.best = trial, snn
            if trial.met and self.budget.accuracy_loss is not None:
                self.horizon = trial.steps - 1  # from here on only fewer steps are of interest

    @property
    def done(self) -> bool:
        """Whether nothing better can be found, or nothing better was asked for."""
        if self.best is None or not self.best[0].met:
            return self.impossible
        if self.budget.accuracy_loss is None:
            return self.best[0].accuracy >= self.parts.ann
        limited = self.budget.steps is not None or self.budget.joules is not None
        return limited or self.horizon == 0

    def conclude(self, measure: str) -> Advice:
        """The advice."""
        if self.best is None:
            reasons = "\n".join(f"  {trial.name}: {trial.note}" for trial in self.trials)
            raise ValueError(f"no method can convert this model within {self.budget}:\n{reasons}")
        chosen, snn = self.best
        result = f"{chosen.name}: {chosen.accuracy:.2f} % after {chosen.steps} steps, {chosen.joules:.3g} J"
        found = "take" if chosen.met else f"{self.budget} is out of reach of all that was tried; nearest is"
        return Advice(
            budget=self.budget,
            met=chosen.met,
            snn=snn,
            chosen=chosen,
            ann=self.parts.ann,
            measure=measure,
            trials=self.trials,
            verdict=f"{found} {result}",
        )

    def _measure(self, trial: Trial, snn: SNN) -> Trial:
        window = next((n.window for n in snn.neurons.values() if n.window is not None), None)
        if window is not None and window > self.horizon:
            return replace(trial, note=f"needs {window} steps, and there are {self.horizon}")
        result = evaluate(
            snn, self.parts.held_out, window or self.horizon, convention=self.convention, progress=False
        )
        if self.budget.joules is not None:
            # The input's multiplications are the same in every conversion, whatever its spikes are.
            self.impossible = snn_joules(0, result.mac[0], self.convention) > self.budget.joules
        return self._choose_steps(trial, result, first=window or 1)

    def _choose_steps(self, trial: Trial, result: Evaluation, first: int) -> Trial:
        """The fewest steps with enough accuracy, else those with the most, among what the budget allows."""
        limit = math.inf if self.budget.joules is None else self.budget.joules
        enough = self.parts.ann - (self.budget.accuracy_loss or 0) - 1e-9
        allowed = [t for t in range(first - 1, result.steps) if result.joules[t] <= limit]
        best = max(allowed, key=lambda t: (result.accuracy[t], -t), default=first - 1)
        met = bool(allowed)
        if self.budget.accuracy_loss is not None:
            best = next((t for t in allowed if result.accuracy[t] >= enough), best)
            met = met and result.accuracy[best] >= enough
        if allowed and self.budget.joules is not None:
            self.horizon = min(self.horizon, 4 * (allowed[-1] + 1))
        return replace(
            trial, steps=best + 1, accuracy=result.accuracy[best], joules=result.joules[best], met=met
        )

    def _rank(self, trial: Trial) -> tuple[bool, float, float]:
        """Smaller is better."""
        if trial.met and self.budget.accuracy_loss is not None:
            return False, trial.steps, -trial.accuracy
        return not trial.met, -trial.accuracy, trial.steps

    def _ranked(self) -> list[Trial]:
        return sorted((t for t in self.trials if not t.note), key=self._rank)

    def _aim(self, method: Method) -> Method:
        """The method for the number of steps in view, where it must be told one; and with the seed."""
        steps = min(self.horizon, self.best[0].steps if self.best else 16)
        aims = {"steps": max(1, steps), "seed": self.seed}
        known = {f.name for f in fields(method)}
        return replace(method, **{k: v for k, v in aims.items() if k in known})


def _cost(method: Method) -> int:
    """Methods that only read thresholds come first, then those that observe, then those that do more."""
    if type(method).finish is not Method.finish or method.initial.needs_calibration:
        return 2
    return int(method.needs_calibration)


def _variants(method: Method) -> Iterator[Method]:
    """The method, and with other settings of the kinds that many methods share."""
    yield method
    if getattr(method, "per_channel", None) is False:
        yield replace(method, per_channel=True)  # type: ignore[call-arg]
    if isinstance(getattr(method, "percentile", None), float):
        for percentile in PERCENTILES:
            yield replace(method, percentile=percentile)  # type: ignore[call-arg]


def _show(trial: Trial) -> None:
    if not sys.stderr.isatty():
        print(trial, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    style = "green" if trial.met else "dim" if trial.note else None
    Console(stderr=True).print(str(trial), style=style, highlight=False, markup=False)
