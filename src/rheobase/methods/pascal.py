"""Precise spike counts by an inhibitory phase."""

from dataclasses import dataclass

from rheobase.methods.parallel import Parallel
from rheobase.network import Neuron, Site, Waiting


@dataclass(frozen=True)
class Pascal(Parallel):
    """A layer collects its input, corrects its count with positive and negative spikes, and then sends it.

    P. Ramesh and G. Srinivasan, "PASCAL: precise and efficient ANN-SNN conversion using spike accumulation
    and adaptive layerwise activation", TMLR 2025.

    Over its T input steps a neuron fires at most once per step. In T − 1 further steps it fires +1 at or
    above its threshold and −1 below zero, inside the neuron. The net count, which is that of the quantised
    activation, is then sent over T steps. So with T = L levels a network of `qcfs` is computed exactly.

    The true latency is T for each layer in a row and T − 1 between two layers; the paper prints a mean over
    the layers. One line per neuron: the spikes of both signs stay inside, and are not counted. Readings: all
    layers have the same number of levels, T; the spikes of a window have equal distances.
    """

    name = "pascal"

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        found = super().revise(neuron, site)
        assert isinstance(found, Waiting)
        found.idle, found.even = self.steps - 1, True
        return found
