"""Spike-Norm: thresholds balanced by the spikes that really arrive."""

from dataclasses import dataclass

import torch

from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.balancing import balance
from rheobase.network import IntegrateFire, Neuron, Poisson, Site


@dataclass(frozen=True)
class SpikeNorm(Method):
    """θ(l) = max of W(l)·s(l−1, t) over samples, neurons and steps; reset to zero, v(0) = 0, Poisson input.

    A. Sengupta, Y. Ye, R. Wang, C. Liu and K. Roy, "Going deeper in spiking neural networks: VGG and residual
    architectures", Frontiers in Neuroscience 2019.

    The maximum is measured layer by layer, with earlier thresholds already set. It is the weighted sum of one
    step, not the membrane. The paper's networks have no biases; `balancing` describes how they are scaled
    here. The end of a residual block has one threshold, for the sum of both branches in a step.
    """

    name = "spike-norm"
    cost = "runs"
    converges = False  # a reset to zero loses what exceeds the threshold, and how much depends on the timing
    coding = Poisson()

    steps: int = 100
    """Number of steps to measure each layer for; the paper's runs have 2500."""

    def __post_init__(self) -> None:
        self._expect_integer("steps")

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones((), device="cpu"), reset="zero")  # until it is measured

    def finish(self, conversion: Conversion) -> None:
        balance(conversion, self.steps)
