"""What can be done about a conversion error, tried on the data at hand."""

import copy
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace

from torch import Tensor, nn

from rheobase import methods
from rheobase.analysis.evaluation import evaluate
from rheobase.conversion import convert
from rheobase.io import display
from rheobase.methods import Method
from rheobase.network import HALF, SNN, Corrected, Initial, Searched, Start

Batches = list[tuple[Tensor, Tensor]]

PERCENTILES = (99.0, 99.9, 99.99, 100.0)


@dataclass(frozen=True)
class Remedy:
    """Something that was tried, and what it did to the percentage of right answers.

    Attributes:
        what: In words.
        cures: The kinds of finding it is meant for.
        before: Percent right without it.
        after: Percent right with it.
        steps: After how many steps `after` was measured.
    """

    what: str
    cures: tuple[str, ...]
    before: float
    after: float
    steps: int

    @property
    def gain(self) -> float:
        """By how many points it is better."""
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
    ann: nn.Module, snn: SNN, data: Batches, steps: int, before: float, progress: bool = True
) -> tuple[list[Remedy], list[str]]:
    """Try what may help, each alone.

    Ctrl-C ends it.

    Args:
        ann: The model that was converted.
        snn: The conversion.
        data: What to fit to and measure on.
        steps: After how many steps.
        before: Percent right as it is.
        progress: Whether to show a progress bar.

    Returns:
        What was tried, the best first, and in words what was not tried any more.
    """
    plan = [*_starts(snn, steps), *_settings(ann, snn, data, steps), *_more_steps(snn, steps)]
    tried: list[Remedy] = []
    done = 0
    with display("trying remedies", len(plan), shown=progress) as bar:
        try:
            for change in plan:
                tried += _try(change, data, before)
                done += 1
                bar.advance()
        except KeyboardInterrupt:
            bar.say("stopped: what was found until now is kept")
    return sorted(tried, key=lambda remedy: -remedy.gain), [change.what for change in plan[done:]]


def _try(change: _Change, data: Batches, before: float) -> list[Remedy]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # dead channels are a finding of their own
        try:
            changed = change.build()
        except ValueError:
            return []  # the method does not fit this network
    after = evaluate(changed, data, change.steps, progress=False).final_accuracy
    return [Remedy(change.what, change.cures, before, after, change.steps)]


def _more_steps(snn: SNN, steps: int) -> Iterator[_Change]:
    if snn.window is not None:
        return
    cures = ("quantisation", "waiting", "unevenness", "bias")
    for factor in (2, 4):
        yield _Change(f"{factor} times as many steps", cures, lambda: snn, factor * steps)


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


def _settings(ann: nn.Module, snn: SNN, data: Batches, steps: int) -> Iterator[_Change]:
    """Conversions by other settings of the method, or by one that has a percentile."""
    inputs, own, start = [x for x, _ in data], method_of(snn), start_of(snn)
    strict = getattr(snn.neuron(snn.sites[0]), "strict", None)
    # A start that is the method's own may depend on its settings.
    usual = own.name if own is not None and own.initial == start else None

    def again(method: Method) -> Callable[[], SNN]:
        initial = None if method.name == usual else start
        return lambda: convert(ann, method, inputs, initial=initial, coding=snn.coding, fire_above=strict)

    cures = ("clipping", "quantisation", "waiting", "bias")
    for what, method in _variants(own, snn.provenance.method, steps):
        yield _Change(what, cures, again(method), steps)


def _variants(own: Method | None, name: str, steps: int) -> Iterator[tuple[str, Method]]:
    """The methods to convert by instead of a network's own, and what is said of each."""
    other = find_percentile_method()
    old = getattr(own, "percentile", None)
    if own is not None and old is not None:
        for percentile in PERCENTILES:
            if percentile != old:
                yield f"percentile {percentile:g} instead of {old:g}", _with(own, percentile=percentile)
    elif other is not None:
        for percentile in PERCENTILES:
            what = f"{other.name} with percentile {percentile:g} instead of {name}"
            yield what, _with(other, percentile=percentile)
    if own is not None and hasattr(own, "per_channel"):
        if not own.per_channel:
            yield "a threshold for each channel", _with(own, per_channel=True)
    elif other is not None and hasattr(other, "per_channel"):
        what = f"{other.name} with a threshold for each channel instead of {name}"
        yield what, _with(other, per_channel=True)
    if own is not None and (meant := getattr(own, "steps", steps)) != steps:
        yield f"converted for {steps} steps instead of {meant}", _with(own, steps=steps)


def _with(method: Method, **settings: object) -> Method:
    return replace(method, **settings)


def method_of(snn: SNN) -> Method | None:
    """The method a network was converted with, where its settings are known here and give it again."""
    name, settings = snn.provenance.method, snn.provenance.settings
    if name not in methods.names() or settings.keys() != {f.name for f in fields(methods.find(name))}:
        return None
    return methods.get(name, **settings) if _plain(settings.values()) else None


def _plain(values: Iterable[object]) -> bool:
    """Whether values are what they were: a record among them has become a dictionary."""
    return all(_plain(v) if isinstance(v, (tuple, list)) else not isinstance(v, dict) for v in values)


def start_of(snn: SNN) -> Start | None:
    """The start a network was converted with; None, its method's own, where that cannot be told any more."""
    asked = snn.provenance.initial
    if searched := re.fullmatch(r"searched\((\d+)\)", asked):
        return Searched(int(searched[1]))
    starts = [_bottom(neuron.initial) for neuron in snn.neurons.values()]
    return starts[0] if str(starts[0]) == asked and all(s == starts[0] for s in starts) else None


def _bottom(start: Initial) -> Initial:
    """A start without the corrections that a method has put on top of it."""
    return _bottom(start.start) if isinstance(start, Corrected) else start


def find_percentile_method() -> Method | None:
    """A method that takes thresholds from a percentile, if there is one."""
    for name in methods.names():
        found = methods.find(name)
        if any(f.name == "percentile" and isinstance(f.default, float) for f in fields(found)):
            return found.example()
    return None
