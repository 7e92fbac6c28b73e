"""Remedies for a conversion error, tried on the given data."""

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from rheobase import methods
from rheobase.analysis.evaluation import evaluate
from rheobase.conversion import DEFAULT_METHOD, convert
from rheobase.io import display
from rheobase.methods import Method
from rheobase.network import HALF, SNN, Corrected, Initial, Searched, Start

Batches = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Remedy:
    """A change that was tried, and its effect on the accuracy.

    Attributes:
        what: The change in words.
        cures: The kinds of finding it is meant for.
        before: Accuracy without it, in percent.
        after: Accuracy with it, in percent.
        steps: The number of steps after which `after` was measured.
    """

    what: str
    cures: tuple[str, ...]
    before: float
    after: float
    steps: int

    @property
    def gain(self) -> float:
        """The gain in accuracy, in points."""
        return self.after - self.before

    def __str__(self) -> str:
        return f"{self.what}: {self.before:.1f} → {self.after:.1f} % at T = {self.steps}"


@dataclass(frozen=True)
class _Change:
    what: str
    cures: tuple[str, ...]
    build: Callable[[], SNN]
    steps: int


def try_remedies(
    model: nn.Module, snn: SNN, data: Batches, steps: int, before: float, progress: bool
) -> tuple[list[Remedy], list[str]]:
    """Try changes that may help, each on its own.

    Ctrl-C stops the search.

    Args:
        model: The model that was converted.
        snn: The conversion.
        data: The data to calibrate with and measure on.
        steps: Number of steps.
        before: The accuracy without a change.
        progress: Whether to show a progress bar.

    Returns:
        What was tried, the best first, and the descriptions of what was not tried.
    """
    plan = [*_starts(snn, steps), *_settings(model, snn, data, steps), *_more_steps(snn, steps)]
    tried: list[Remedy] = []
    done = 0
    with display("trying remedies", len(plan), shown=progress) as bar:
        try:
            for change in plan:
                tried += _try(change, data, before)
                done += 1
                bar.advance()
        except KeyboardInterrupt:
            bar.say("stopped: the results so far are kept")
    return sorted(tried, key=lambda remedy: -remedy.gain), [change.what for change in plan[done:]]


def _try(change: _Change, data: Batches, before: float) -> list[Remedy]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # dead channels are a separate finding
        try:
            changed = change.build()
        except ValueError:
            return []  # the method cannot convert this network
    after = evaluate(changed, data, change.steps, progress=False).final_accuracy
    return [Remedy(change.what, change.cures, before, after, change.steps)]


def _more_steps(snn: SNN, steps: int) -> Iterator[_Change]:
    if snn.window is not None:
        return
    cures = ("unsettled",) if snn.code == "sum" else ("quantisation", "waiting", "unevenness", "bias")
    for factor in (2, 4):
        total = snn.delay + factor * (steps - snn.delay)
        yield _Change(f"{factor} times as many steps", cures, lambda: snn, total)


def _starts(snn: SNN, steps: int) -> Iterator[_Change]:
    half = {site: n.initial.restart(HALF) for site, n in snn.neurons.items()}
    if all(str(n.initial) == str(half[site]) for site, n in snn.neurons.items()):
        return

    def build() -> SNN:
        changed = copy.deepcopy(snn)
        for site, initial in half.items():
            changed.neuron(site).initial = initial
        return changed

    starts = {str(neuron.initial) for neuron in snn.neurons.values()}
    old = starts.pop() if len(starts) == 1 else snn.provenance.initial
    yield _Change(f"start half instead of {old}", ("quantisation", "waiting", "bias"), build, steps)


def _settings(model: nn.Module, snn: SNN, data: Batches, steps: int) -> Iterator[_Change]:
    """Conversions with other settings of the method, or with the default method."""
    inputs, own, start = [x for x, _ in data], methods.restore(snn.provenance), start_of(snn)
    strict = snn.neuron(snn.sites[0]).strict
    # The method's own start may depend on its settings.
    usual = own.name if own is not None and own.initial == start else None

    def again(method: Method) -> Callable[[], SNN]:
        initial = None if method.name == usual else start
        return lambda: convert(model, method, inputs, initial=initial, coding=snn.coding, fire_above=strict)

    cures = ("clipping", "quantisation", "waiting", "bias", "unsettled")
    for what, method in _variants(own, snn.provenance.title, steps):
        yield _Change(what, cures, again(method), steps)


def _variants(own: Method | None, name: str, steps: int) -> Iterator[tuple[str, Method]]:
    """Other settings of a network's own method, and the default method, each with a description."""
    if own is not None:
        yield from own.variants()
        if (aimed := own.aimed_at(steps)) != own:
            yield f"converted for {steps} steps", aimed
    other = methods.find(DEFAULT_METHOD).example()
    if own is None or own.name != other.name:
        yield f"{other.name} instead of {name}", other
        for what, variant in other.variants():
            yield f"{other.name} with {what} instead of {name}", variant


def start_of(snn: SNN) -> Start | None:
    """The start that a network was converted with; None, its method's own, where it is not known."""
    asked = snn.provenance.initial
    if searched := re.fullmatch(r"searched\((\d+)\)", asked):
        return Searched(int(searched[1]))
    starts = [_bottom(neuron.initial) for neuron in snn.neurons.values()]
    return starts[0] if str(starts[0]) == asked and all(s == starts[0] for s in starts) else None


def _bottom(start: Initial) -> Initial:
    """A start without the corrections that a method added."""
    return _bottom(start.start) if isinstance(start, Corrected) else start
