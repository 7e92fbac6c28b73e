"""Offset spikes: a pre-run of each layer tells which neurons fire once too often or too rarely."""

from dataclasses import dataclass

from rheobase.methods.composition import Correction
from rheobase.methods.contract import Conversion
from rheobase.network import Neuron, Rehearsed, Site, plain


@dataclass(frozen=True)
class COS(Correction):
    """Layer by layer, each initial potential is shifted by the error of the neuron's last ρ steps.

    Z. Hao, J. Ding, T. Bu, T. Huang and Z. Yu, "Bridging the gap between ANNs and SNNs by calibrating offset
    spikes", ICLR 2023.

    For each image a layer runs ρ steps from θ/2 on the spikes of the layers before it, which are corrected
    already. A membrane below zero has fired once too often, one that still reaches its threshold once too
    rarely: from then on it starts lower or higher, so that it fires once less or more; `Rehearsed` has the
    rule. After the last layer all start again, and the run counts.

    Readings: one round of corrections, as the authors' code runs, where the paper repeats them. A neuron that
    fired at every step is not corrected upwards, as it cannot fire more often. Max-pools keep the sums of the
    rehearsal.

    The paper counts ρ + T steps. But a layer needs ρ steps of its corrected input before it is corrected, and
    layers wait for each other: the rehearsal takes ρ steps for each layer, one after the other. That is the
    delay of the network here, and part of its true latency. One line per neuron.
    """

    name = "cos"
    changes = "neurons"

    pre: int = 4
    """ρ: the steps of each layer; 4 for CIFAR, 8 for ImageNet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_integer("pre")

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        return Rehearsed.of(plain(neuron), "shift", self.pre)

    def correct(self, conversion: Conversion) -> None:
        snn = conversion.snn
        depths = snn.depths
        for site, neuron in snn.neurons.items():
            assert isinstance(neuron, Rehearsed)
            neuron.turn, neuron.turns = depths[site], max(depths.values())
        snn.delay += self.pre * max(depths.values())
