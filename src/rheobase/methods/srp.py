"""Residual membrane potential: a pre-run tells which neurons fire by mistake."""

from dataclasses import dataclass

from rheobase.methods.composition import Correction
from rheobase.methods.contract import Conversion
from rheobase.network import Neuron, Rehearsed, Site, plain


@dataclass(frozen=True)
class SRP(Correction):
    """After τ steps, neurons without residual potential fall silent; then the run starts again and counts.

    Z. Hao, T. Bu, J. Ding, T. Huang and Z. Yu, "Reducing ANN-SNN conversion error through residual membrane
    potential", AAAI 2023.

    For each image all layers run τ steps from θ/2. A neuron whose membrane is not above 10⁻³·θ then has fired
    more than its input asks for, and is likely to stand for zero: it sends nothing in the steps that follow,
    which begin at θ/2 again.

    Readings: a neuron that is silenced goes on integrating and resetting, as in the authors' code; only what
    it sends is zero, and is not counted. Max-pools keep the sums of the first τ steps.

    Printed numbers of steps leave out τ; here it is the delay of the network, and part of its true latency τ
    + T. One line per neuron.
    """

    name = "srp"
    changes = "neurons"
    converges = False

    pre: int = 4
    """τ: 4 for CIFAR; 8 and 14 for ImageNet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_integer("pre")

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        return Rehearsed.of(plain(neuron), "mask", self.pre)

    def correct(self, conversion: Conversion) -> None:
        conversion.snn.delay += self.pre
