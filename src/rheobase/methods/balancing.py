"""Threshold balancing: thresholds measured on the spiking network itself, layer by layer.

The papers that do this let every spike be worth one. The network then computes a scaled copy of the ordinary
one: with c(l) the product of the thresholds θ(1) … θ(l), the rates of layer l stand for activations divided
by c(l), and its bias must be divided by c(l−1) to keep its part in the sum. Here the same spikes come about
in another way: a spike is worth its threshold Θ(l) = c(l), currents are c(l−1) times as large, and biases
stay as they are. Where branches meet, each brings its own scale, so the sum of a residual block is right
whatever the thresholds in its branches are.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rheobase.graph import Site
from rheobase.methods.base import Maximum, Observer
from rheobase.methods.observers import Quantile
from rheobase.neurons import Neuron
from rheobase.progress import display
from rheobase.simulation import Simulator, simulate

if TYPE_CHECKING:
    from rheobase.conversion import Conversion

Largest = Maximum | Quantile

# What may be held to measure all sites in one run, which saves a run up to each of them.
_ROOM = {"cpu": 2 * 2**30, "cuda": 64 * 2**30}


def balance(
    conversion: "Conversion", steps: int, *, factor: float = 1.0, percentile: float | None = None
) -> None:
    """Set each threshold to `factor` times the largest current of its site, with those before it set already.

    The current is that of one step: the weighted sum of the spikes coming in, and the bias; not the membrane.
    Where branches meet before a site, it is the sum of what all of them bring.

    Args:
        conversion: The conversion. Its calibration data are shown in its own coding and with its own start.
        steps: How many steps to measure each site for.
        factor: What to multiply by.
        percentile: Take this percentile of the positive currents instead of the largest.
    """
    match_network(conversion)

    def settle(site: Site, neuron: Neuron, observer: Largest) -> None:
        assert observer.value is not None
        _tune(neuron, site, factor * observer.value)
        bar.advance()

    def observe() -> Largest:
        return Maximum() if percentile is None else Quantile(percentile / 100)

    with display("balancing thresholds", len(conversion.ann.sites)) as bar:
        if not _settle_at_once(conversion, steps, observe, settle):
            for site in conversion.ann.sites:
                observer = observe()
                _observe_currents(conversion, site, steps, observer)
                settle(site, conversion.snn.neuron(site.name), observer)


def set_threshold(conversion: "Conversion", site: Site, threshold: Tensor) -> None:
    """Give a site's neuron another threshold, and its spikes that amplitude; a bound of the site holds on."""
    _tune(conversion.snn.neuron(site.name), site, threshold)


def _tune(neuron: Neuron, site: Site, threshold: Tensor) -> None:
    neuron.retune(threshold)
    if site.bound is not None:
        neuron.limit(site.bound)


def match_network(conversion: "Conversion") -> None:
    """Bring neurons that were made without data to the device and precision of the network."""
    like = next(conversion.ann.module.parameters(), torch.empty(()))
    conversion.snn.to(like.device, like.dtype)


def gather(conversion: "Conversion", count: int) -> Tensor:
    """So many calibration inputs, from the first, or all if there are fewer; later batches are not made."""
    found: list[Tensor] = []
    for x in conversion.calibration():
        found.append(x[: count - sum(map(len, found))])
        if sum(map(len, found)) == count:
            break
    return torch.cat(found)


def _settle_at_once(
    conversion: "Conversion",
    steps: int,
    observe: Callable[[], Largest],
    settle: Callable[[Site, Neuron, Largest], None],
) -> bool:
    """Settle every site in one run, if all steps of the calibration data can be held; tell whether it was so.

    Each layer is run for all steps before the next one is, so that its neurons can be settled in between.
    """
    snn, sites = conversion.snn, conversion.ann.sites
    neurons = [snn.neuron(site.name) for site in sites]
    for site, neuron in zip(sites, neurons, strict=True):
        observer = observe()
        meter = _Meter(neuron, observer, partial(settle, site, neuron, observer))
        snn.module.set_submodule(site.name, meter)
    few = gather(conversion, 1)
    simulator = Simulator(
        snn, few, steps, at=[steps], chunk=steps, memory=_ROOM.get(few.device.type), count=False
    )
    most = simulator.plan.fit_whole(sys.maxsize, steps, simulator.memory)
    x = gather(conversion, most + 1)
    # A device that runs out of memory after all gets its batch in parts.
    whole = len(x) <= most and simulator.run(x).chunk == (len(x), steps)
    for site, neuron in zip(sites, neurons, strict=True):
        snn.module.set_submodule(site.name, neuron)
    return whole


def _observe_currents(conversion: "Conversion", site: Site, steps: int, observer: Observer) -> None:
    """Show an observer the currents of a site at every step, over the calibration data."""
    snn = conversion.snn
    neuron = snn.neuron(site.name)
    snn.module.set_submodule(site.name, _Meter(neuron, observer))
    first_sample = 0
    for x in conversion.calibration():
        simulate(snn, x, steps, at=[steps], read=site.name, first_sample=first_sample)
        first_sample += x.shape[0]
    snn.module.set_submodule(site.name, neuron)


class _Meter(Neuron):
    """Stands in for a neuron and shows its currents to an observer.

    Then the neuron is settled and fires, if there is a way to settle it; else nothing fires.
    """

    def __init__(self, neuron: Neuron, observer: Observer, settle: Callable[[], None] | None = None) -> None:
        super().__init__(neuron.threshold, neuron.amplitude)
        self.neuron, self.observer, self.settle = neuron, observer, settle
        self.place = (0, 0)

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        self.place = site, first_sample
        return self.threshold.new_zeros(shape)

    def forward(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        self.observer.update(current.expand(steps, *membrane.shape).flatten(0, 1))
        if self.settle is None:
            return torch.zeros(steps, *membrane.shape, dtype=membrane.dtype, device=membrane.device)
        with torch.inference_mode(False):  # thresholds outlive the run
            self.settle()
        start = self.neuron.start(membrane.shape, *self.place)
        return self.neuron.advance(current, membrane.copy_(start), steps, out)
