"""Threshold balancing: thresholds measured on the running SNN, layer by layer.

In the papers every spike is worth one. The SNN then computes a scaled copy of the ANN: with c(l) the product
of the thresholds θ(1) … θ(l), the rates of layer l stand for activations divided by c(l), and its bias must
be divided by c(l−1) to keep its weight in the sum. Here the same spikes are produced differently: a spike is
worth its threshold Θ(l) = c(l), currents are c(l−1) times as large, and biases stay as they are. Where
branches meet, each has its own scale, so the sum of a residual block is right for any thresholds in its
branches.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import torch
from torch import Tensor

from rheobase.io import display
from rheobase.methods.contract import Conversion, Observer
from rheobase.methods.shared.observers import Maximum, Quantile
from rheobase.methods.shared.settling import Fire, Settle, settle_at_once
from rheobase.network import Neuron, Site, find_like
from rheobase.simulation import Simulator

Largest = Maximum | Quantile


def balance(
    conversion: Conversion, steps: int, *, factor: float = 1.0, percentile: float | None = None
) -> None:
    """Set each threshold to `factor` times the largest current of its site, with earlier ones already set.

    The current is that of one step: the weighted sum of incoming spikes plus the bias, not the membrane.
    Where branches meet before a site, it is the sum over all of them.

    Args:
        conversion: The conversion. The calibration data are run in its coding and with its start.
        steps: Number of steps to measure each site for.
        factor: Multiplies the largest current.
        percentile: Use this percentile of the positive currents instead of the largest.
    """
    match_network(conversion)

    def observe() -> Largest:
        return Maximum() if percentile is None else Quantile(percentile / 100)

    def tune(site: Site, neuron: Neuron, observer: Largest) -> None:
        _tune(neuron, site, factor * observer.value)
        bar.advance()

    def settler(site: Site) -> Settle:
        neuron, observer = conversion.snn.neuron(site.name), observe()

        def settle(current: Tensor, _: Fire) -> None:
            observer.update(current.flatten(0, 1))
            with torch.inference_mode(False):
                tune(site, neuron, observer)

        return settle

    with display("balancing thresholds", len(conversion.ann.sites)) as bar:
        if not settle_at_once(conversion, steps, settler):
            for site in conversion.ann.sites:
                observer = observe()
                _observe_currents(conversion, site, steps, observer)
                tune(site, conversion.snn.neuron(site.name), observer)


def set_threshold(conversion: Conversion, site: Site, threshold: Tensor) -> None:
    """Set the threshold and the amplitude of a site's neuron, at most to the bound of the site."""
    _tune(conversion.snn.neuron(site.name), site, threshold)


def _tune(neuron: Neuron, site: Site, threshold: Tensor) -> None:
    neuron.retune(threshold)
    if site.bound is not None:
        neuron.limit(site.bound)


def match_network(conversion: Conversion) -> None:
    """Move neurons that were made without data to the device and precision of the network."""
    conversion.snn.to(find_like(conversion.ann.module))


def _observe_currents(conversion: Conversion, site: Site, steps: int, observer: Observer) -> None:
    """Show an observer the currents of a site at every step, over the calibration data."""
    snn = conversion.snn
    neuron = snn.neuron(site.name)
    snn.module.set_submodule(site.name, _Shown(neuron, observer))
    first_sample = 0
    for x in conversion.calibration():
        Simulator(snn, x, steps, at=[steps], read=site.name).run(x, first_sample)
        first_sample += x.shape[0]
    snn.module.set_submodule(site.name, neuron)


class _Shown(Neuron):
    """Stands in for a neuron and shows its currents to an observer; it never fires."""

    watches = True

    def __init__(self, neuron: Neuron, observer: Observer) -> None:
        super().__init__(neuron.threshold, neuron.amplitude)
        self.observer = observer

    def forward(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        self.observer.update(current.expand(steps, *membrane.shape).flatten(0, 1))
        return membrane.new_zeros(steps, *membrane.shape)
