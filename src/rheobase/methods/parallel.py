"""Parallel conversion: a layer waits for its window and sends the right number of spikes."""

from dataclasses import dataclass

from rheobase.methods.composition import Correction
from rheobase.methods.contract import Conversion
from rheobase.network import Neuron, Site, Waiting, plain


@dataclass(frozen=True)
class Parallel(Correction):
    """A neuron waits for all T steps of its input and then sends clip(⌊(T·z + θ/2)/θ⌋, 0, T) spikes.

    Z. Hao et al., "Faster and stronger: when ANN-SNN conversion meets parallel spiking
    calculation", ICML 2025.

    At step x it fires if (T·z + θ/2)/x ≥ θ, with z the mean current over the window: all steps at once, the
    spikes first. So each layer is a quantiser with T levels, and a network of `qcfs` with L = T levels is
    computed exactly.

    The printed T leaves out that layers wait: the true latency is T for each layer in a row. One line per
    neuron. Readings: spikes come first, as in the code; the paper prints the mirrored order. Its calibration
    of networks with plain ReLU is left out.
    """

    name = "parallel"
    changes = "neurons"
    converges = False

    steps: int = 4
    """T."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_integer("steps")

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        found = plain(neuron)
        return Waiting(found.threshold, found.amplitude, found.initial, window=self.steps)

    def correct(self, conversion: Conversion) -> None:
        conversion.snn.delay = 0  # layers wait for each other, so that all outputs count
