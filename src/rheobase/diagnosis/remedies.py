"""What can be done about a conversion error, tried on the data at hand."""

import copy
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from torch import Tensor, nn

from rheobase import methods
from rheobase.conversion import convert
from rheobase.evaluation import evaluate
from rheobase.membrane import Half, Initial, parse
from rheobase.methods import Method
from rheobase.neurons import IntegrateFire
from rheobase.progress import display
from rheobase.snn import SNN

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
    after = evaluate(changed, data, change.steps, progress=False).accuracy[-1]
    return [Remedy(change.what, change.cures, before, after, change.steps)]


def _more_steps(snn: SNN, steps: int) -> Iterator[_Change]:
    if any(neuron.window is not None for neuron in snn.neurons.values()):
        return
    cures = ("quantisation", "waiting", "unevenness", "bias")
    for factor in (2, 4):
        yield _Change(f"{factor} times as many steps", cures, lambda: snn, factor * steps)


def _starts(snn: SNN, steps: int) -> Iterator[_Change]:
    half = {site: n.initial.restart(Half()) for site, n in snn.neurons.items()}
    if all(str(n.initial) == str(half[site]) for site, n in snn.neurons.items()):
        return

    def build() -> SNN:
        changed = copy.deepcopy(snn)
        for site, initial in half.items():
            changed.neuron(site).initial = initial
        return changed

    old = str(snn.neuron(snn.sites[0]).initial)
    yield _Change(f"start half instead of {old}", ("quantisation", "waiting", "bias"), build, steps)


def _settings(ann: nn.Module, snn: SNN, data: Batches, steps: int) -> Iterator[_Change]:
    """Other settings of the method, or of one that has a percentile."""
    inputs = [x for x, _ in data]
    initial, neuron = start_of(snn), snn.neuron(snn.sites[0])
    strict = neuron.strict if isinstance(neuron, IntegrateFire) else None

    def again(method: Method) -> Callable[[], SNN]:
        return lambda: convert(ann, method, inputs, initial=initial, coding=snn.coding, strict=strict)

    cures = ("clipping", "quantisation", "waiting", "bias")
    own, by_percentile = method_of(snn), find_percentile_method()
    old = getattr(own, "percentile", None)
    if isinstance(old, float):
        by_percentile = own
    if by_percentile is not None:
        instead = f"{old:g}" if isinstance(old, float) else snn.provenance.method
        for percentile in PERCENTILES:
            if percentile != old:
                changed = _with(by_percentile, percentile=percentile)
                yield _Change(f"percentile {percentile:g} instead of {instead}", cures, again(changed), steps)
    single = own if hasattr(own, "per_channel") else by_percentile
    if single is not None and getattr(single, "per_channel", None) is False:
        yield _Change("a threshold for each channel", cures, again(_with(single, per_channel=True)), steps)
    if own is not None and (meant := getattr(own, "steps", steps)) != steps:
        yield _Change(
            f"converted for {steps} steps instead of {meant}", cures, again(_with(own, steps=steps)), steps
        )


def _with(method: Method, **settings: object) -> Method:
    return replace(method, **settings)


def method_of(snn: SNN) -> Method | None:
    """The method a network was converted with, where it is known here with these settings."""
    name, settings = snn.provenance.method, snn.provenance.settings
    if name not in methods.names() or settings.keys() != {f.name for f in fields(methods.find(name))}:
        return None
    return methods.get(name, **settings)


def start_of(snn: SNN) -> Initial | None:
    """The start a network was converted with, where its name says it; None stands for its method's own."""
    try:
        return parse(snn.provenance.initial)
    except ValueError:
        return None


def find_percentile_method() -> Method | None:
    """A method that takes thresholds from a percentile, if there is one."""
    for name in methods.names():
        found = methods.find(name)
        if any(f.name == "percentile" and isinstance(f.default, float) for f in fields(found)):
            return found.example()
    return None
