"""Advice: which method, start, settings and number of steps to use for a given budget.

Candidates are converted on one part of the calibration data and measured on the other, from the cheap to the
expensive: every method as in its paper, with the default of `convert` before all that measure the network,
then settings with fewer lines of those that have too many, then the cheap ones with a half start, then other
starts and other settings of the best, then the best with methods that correct them, twice over, with all
settings of these if lines are limited. One run gives the accuracy after every step; once a number of steps is
enough, other candidates only run for fewer. Where layers wait or the first steps do not count, a method is
aimed at the most steps whose true latency is allowed.
"""

import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rheobase import methods
from rheobase.analysis.costs import Latency, latency_of
from rheobase.analysis.energy import PAPER, Convention, find_convention, snn_joules
from rheobase.analysis.evaluation import Evaluation, evaluate
from rheobase.analysis.trials import TRIED, Advice, Budget, Trial
from rheobase.conversion import DEFAULT_METHOD, convert, lower
from rheobase.io import Data, batches, live_table
from rheobase.methods import COSTS, Correction, Method
from rheobase.network import HALF, SNN, ZERO, ConstantCurrent, Start, answer_of, classes_of, require_double

__all__ = ["Advice", "Budget", "Trial", "advise"]

_STARTS_OF, _SETTINGS_OF, _CORRECTIONS = 3, 2, 2


def advise(
    model: nn.Module,
    calibration: Data,
    budget: Budget,
    *,
    most_steps: int = 64,
    hold_out: float = 0.5,
    seed: int = 0,
    convention: Convention | str = PAPER,
    progress: bool = True,
) -> Advice:
    """Find a conversion of a network that stays within a budget.

    Ctrl-C stops the search: the best conversion so far is returned, marked as interrupted.

    Args:
        model: The trained model. It is not changed.
        calibration: Training inputs, with labels if there are any. Never test data: conversions are fitted to
            one part of them and chosen by the other.
        budget: What the conversion may cost.
        most_steps: The largest true latency to try where the budget has none.
        hold_out: The share of the inputs to measure on.
        seed: Seed of the split of the inputs; the same seed gives the same advice.
        convention: The energy of an operation: a convention, or its name (`paper`, `45nm`).
        progress: Whether to show a growing table of what was tried.

    Raises:
        ValueError: No method can convert the model; the message gives the reason for each.
    """
    if not isinstance(budget, Budget):
        raise TypeError(
            f"expected a budget such as rheobase.Budget(accuracy_loss=0.5), got a {type(budget).__name__}; "
            "no images to measure on are passed, as a part of the calibration data is held out"
        )
    convention = find_convention(convention)
    parts, measure = _split(model, calibration, hold_out, seed)
    search = _Search(model, parts, budget, budget.steps or most_steps, convention)
    interrupted = False
    with live_table("advising", TRIED, search.most, shown=progress) as show:
        try:
            for trial in search.try_all():
                show(str(trial), trial.cells, "green" if trial.remark else "dim" if trial.note else "")
        except KeyboardInterrupt:
            if search.best is None:
                raise
            interrupted = True
    return search.conclude(measure, interrupted)


@dataclass(frozen=True)
class _Parts:
    """The calibration data: what to fit to, what to measure on, and the ANN's accuracy on the latter."""

    fit: Tensor
    held_out: tuple[Tensor, Tensor]
    ann: float


def _split(model: nn.Module, calibration: Data, hold_out: float, seed: int) -> tuple[_Parts, str]:
    given = list(batches(calibration, what="calibration data"))
    device = next((p.device for p in model.parameters()), given[0][0].device)
    require_double(device, "advise")
    x = torch.cat([x for x, _ in given]).to(device)
    labels = [y for _, y in given if y is not None]
    count = round(hold_out * len(x))
    if not 1 <= count < len(x):
        raise ValueError(
            f"hold_out={hold_out:g} of {len(x)} inputs leaves none to fit to or none to measure on"
        )
    order = torch.randperm(len(x), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(
        device
    )
    ann, _ = lower(model, x)
    held, rest = order[:count], order[count:].sort().values
    with torch.no_grad():
        answers = torch.cat([classes_of(answer_of(ann(part))) for part in torch.split(x[held], 128)])
    y = torch.cat(labels).to(device)[held] if labels else answers
    right = 100 * (answers == y).double().mean().item()
    return _Parts(x[rest], (x[held], y), right), "accuracy" if labels else "agreement"


def _examples() -> list[Method]:
    return [methods.find(name).example() for name in methods.names()]


class _Search:
    """Tries candidates and keeps the best."""

    def __init__(
        self,
        model: nn.Module,
        parts: _Parts,
        budget: Budget,
        horizon: int,
        convention: Convention,
    ) -> None:
        self.model, self.parts, self.budget, self.horizon = model, parts, budget, horizon
        self.convention = convention
        self.trials: list[Trial] = []
        self.best: tuple[Trial, SNN] | None = None
        self.impossible = False
        self.surveyed = False  # whether every method has been tried once
        self.timings: dict[str, Latency] = {}  # of methods whose latency is not their number of steps

    def candidates(self) -> Iterator[Trial]:
        """What to try next, given the results so far."""
        every = [method for method in _examples() if not isinstance(method, Correction)]
        own = [(method, False) for method in every]
        usual = [(method, True) for method in every if method.name == DEFAULT_METHOD]
        for method, half in sorted([*usual, *own], key=lambda each: COSTS.index(each[0].cost)):
            aimed = self._aim(method)
            yield Trial(aimed, HALF if half else aimed.initial)
        if self.budget.lines is not None:
            yield from self._with_fewer_lines(self.budget.lines)
        self.surveyed = True
        for trial in [t for t in self.trials if not t.note]:
            # What a method fits depends on its own start.
            if trial.method.cost != "runs" and trial.method.fits == "nothing":
                yield Trial(trial.method, HALF)
        for trial in self._ranked()[:_STARTS_OF]:
            for initial in (HALF, ZERO):
                yield Trial(trial.method, initial)
        best = {trial.method.name: trial for trial in reversed(self._ranked())}
        for trial in sorted(best.values(), key=self._rank)[:_SETTINGS_OF]:
            aimed = self._aim(trial.method)
            for method in (aimed, *(variant for _, variant in aimed.variants())):
                yield Trial(method, trial.initial)
        for _ in range(_CORRECTIONS):
            # Nothing corrects neurons that wait.
            for trial in [t for t in self._ranked() if t.latency == t.steps][:_SETTINGS_OF]:
                yield from self._corrected(trial)

    def _with_fewer_lines(self, allowed: int) -> Iterator[Trial]:
        """Methods that have too many lines, with those of their settings that do not."""
        for trial in [t for t in self.trials if t.lines > allowed]:
            for _, variant in self._aim(trial.method).variants():
                with suppress(ValueError):  # it cannot convert this network
                    if self._sketch(variant).lines <= allowed:
                        yield Trial(variant, variant.initial)

    def _corrected(self, trial: Trial) -> Iterator[Trial]:
        """A method with each correction that fits it."""
        for correction in self._corrections():
            with suppress(ValueError):  # it does not compose
                method = self._aim(methods.extend(trial.method, correction))
                yield Trial(method, method.initial)

    def _corrections(self) -> list[Correction]:
        """All corrections; with other settings too if lines are limited, which settings decide."""
        usual = [method for method in _examples() if isinstance(method, Correction)]
        if self.budget.lines is None:
            return usual
        return [*usual, *(variant for method in usual for _, variant in method.variants())]

    @property
    def most(self) -> int:
        """The largest possible number of candidates."""
        every = [method for method in _examples() if not isinstance(method, Correction)]
        settings = max(1 + len(list(method.variants())) for method in _examples())
        plain = 2 * len(every) + 2 * _STARTS_OF + settings * _SETTINGS_OF
        if self.budget.lines is not None:
            plain += 2 * sum(len(list(method.variants())) for method in every)
        return plain + len(self._corrections()) * _SETTINGS_OF * _CORRECTIONS

    def try_all(self) -> Iterator[Trial]:
        """Try the candidates one by one, until nothing better can be found."""
        for trial in self.candidates():
            if not any((t.method, str(t.initial)) == (trial.method, str(trial.initial)) for t in self.trials):
                yield self._try_out(trial)
                if self.done:
                    return

    def _try_out(self, trial: Trial) -> Trial:
        """Convert and measure a candidate, and keep the result."""
        snn = None
        try:
            snn = self._convert(trial.method, trial.initial, self.parts.fit)
            if trial.method.title not in self.timings and (snn.window or snn.delay):
                self.timings[trial.method.title] = self._time(trial.method, snn)
                method = self._aim(trial.method)
                if method != trial.method:
                    own = trial.initial == trial.method.initial
                    trial = Trial(method, method.initial if own else trial.initial)
                    snn = self._convert(trial.method, trial.initial, self.parts.fit)
        except ValueError as error:
            trial = replace(trial, note=str(error))
        else:
            trial = self._measure(trial, snn)
        self.trials.append(trial)
        if snn is not None and not trial.note:
            self._keep_best(trial, snn)
        return trial

    def _convert(self, method: Method, initial: Start, inputs: Tensor) -> SNN:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # dead channels show in the accuracy
            return convert(self.model, method, inputs, initial=initial, coding=ConstantCurrent())

    def _sketch(self, method: Method) -> Latency:
        """The wires of a method, and its latency in a run of one step, from a conversion by one input."""
        snn = self._convert(method, method.initial, self.parts.fit[:1])
        return latency_of(snn, snn.window or snn.delay + 1)

    def _time(self, method: Method, snn: SNN) -> Latency:
        """The latency of a method at some number of steps, without a delay that is part of these."""
        if snn.window is not None and snn.window > 1:  # one step alone does not tell what grows with them
            return latency_of(snn, snn.window)
        return self._sketch(method.aimed_at(2))

    def _keep_best(self, trial: Trial, snn: SNN) -> None:
        if self.best is None or self._rank(trial) < self._rank(self.best[0]):
            self.best = trial, snn
            if trial.met and self.budget.accuracy_loss is not None:
                self.horizon = trial.latency - 1  # from here on only fewer steps are better

    @property
    def done(self) -> bool:
        """Whether nothing better can be found or was asked for."""
        if self.best is None or not self.best[0].met:
            return self.impossible
        if self.budget.accuracy_loss is None:
            return self.best[0].accuracy >= self.parts.ann
        limited = self.budget.steps is not None or self.budget.joules is not None
        return limited or self.horizon == 0

    def conclude(self, measure: str, interrupted: bool) -> Advice:
        """The advice."""
        if self.best is None:
            reasons = "\n".join(f"  {trial.name}: {trial.note}" for trial in self.trials)
            raise ValueError(f"no method can convert this model within {self.budget}:\n{reasons}")
        chosen, snn = self.best
        steps = f"{chosen.steps} step{'s' if chosen.steps > 1 else ''}"
        if chosen.latency != chosen.steps:
            steps += f" per layer, {chosen.latency} in all"
        gain = chosen.accuracy - self.parts.ann
        loss = f"{abs(gain):.2f} points {'above' if gain > 0 else 'below'} the ANN"
        lines = f"{chosen.lines} line{'s' if chosen.lines > 1 else ''} per neuron"
        costs = f"after {steps} with {lines}, {loss}, {chosen.joules * 1e6:.3g} µJ"
        result = f"{chosen.name}: {chosen.accuracy:.2f} % {costs}"
        found = "take" if chosen.met else f"nothing tried stays within {self.budget}; the closest is"
        if interrupted:
            found = f"stopped after {len(self.trials)} trials; so far, {found}"
        return Advice(
            budget=self.budget,
            met=chosen.met,
            snn=snn,
            chosen=chosen,
            ann=self.parts.ann,
            measure=measure,
            trials=self.trials,
            verdict=f"{found} {result}",
            interrupted=interrupted,
        )

    def _measure(self, trial: Trial, snn: SNN) -> Trial:
        window = snn.window
        timing = latency_of(snn, window or max(self.horizon, snn.delay + 1))
        trial = replace(trial, lines=timing.lines)
        if self.budget.lines is not None and timing.lines > self.budget.lines:
            allowed = f"{self.budget.lines} {'is' if self.budget.lines == 1 else 'are'} allowed"
            return replace(trial, note=f"its neurons drive {timing.lines} lines, but only {allowed}")
        if timing.total > self.horizon:
            return replace(trial, note=f"needs {timing.total} steps, but only {self.horizon} are allowed")
        result = evaluate(
            snn, self.parts.held_out, window or self.horizon, convention=self.convention, progress=False
        )
        if self.budget.joules is not None:
            # The multiplications at the input are the same in every conversion.
            self.impossible = snn_joules(0, result.mac[0], self.convention) > self.budget.joules
        chosen = self._choose_steps(trial, result, first=window or snn.delay + 1)
        return replace(chosen, latency=latency_of(snn, chosen.steps).total)

    def _choose_steps(self, trial: Trial, result: Evaluation, first: int) -> Trial:
        """The fewest steps with enough accuracy, else those with the highest, within the budget."""
        limit = math.inf if self.budget.joules is None else self.budget.joules
        enough = self.parts.ann - (self.budget.accuracy_loss or 0) - 1e-9
        accuracy = [a or 0.0 for a in result.accuracy]
        allowed = [t for t in range(first - 1, result.steps) if result.joules[t] <= limit]
        best = max(allowed, key=lambda t: (accuracy[t], -t), default=first - 1)
        met = bool(allowed)
        if self.budget.accuracy_loss is not None:
            best = next((t for t in allowed if accuracy[t] >= enough), best)
            met = met and accuracy[best] >= enough
        if allowed and self.budget.joules is not None:
            self.horizon = min(self.horizon, 4 * (allowed[-1] + 1))
        remark = "met" if self.budget.accuracy_loss is not None else "within the energy"
        return replace(
            trial,
            steps=best + 1,
            accuracy=accuracy[best],
            joules=result.joules[best],
            met=met,
            remark=remark if met and not self.budget.steps_alone else "",
        )

    def _rank(self, trial: Trial) -> tuple[bool, float, float]:
        """Smaller is better."""
        if trial.met and self.budget.accuracy_loss is not None:
            return False, trial.latency, -trial.accuracy
        return not trial.met, -trial.accuracy, trial.latency

    def _ranked(self) -> list[Trial]:
        return sorted((t for t in self.trials if not t.note), key=self._rank)

    def _aim(self, method: Method) -> Method:
        """The method for the number of steps that is looked for, or the most whose latency is allowed."""
        wanted = self.best[0].steps if self.best and self.surveyed else 16
        timing = self.timings.get(method.title)
        if timing is None:
            return method.aimed_at(max(1, min(self.horizon, wanted)))
        most = self.horizon if self.budget.steps else min(self.horizon, wanted)
        fitting = (t for t in range(1, most + 1) if _latency_at(timing, t) <= self.horizon)
        return method.aimed_at(max(fitting, default=1))


def _latency_at(timing: Latency, steps: int) -> int:
    """The true latency at another number of steps: what layers wait for in between grows with them."""
    idle = timing.idle * (steps - 1) // max(1, timing.steps - 1)
    return replace(timing, steps=steps, idle=idle).total
