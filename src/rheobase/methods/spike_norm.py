"""Spike-Norm: thresholds balanced by the spikes that really arrive."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rheobase.methods.contract import Method, Observer
from rheobase.methods.shared.balancing import balance
from rheobase.network import Coding, IntegrateFire, Neuron, Poisson, Site

if TYPE_CHECKING:
    from rheobase.methods.contract import Conversion


@dataclass(frozen=True)
class SpikeNorm(Method):
    """θ(l) = max of W(l)·s(l−1, t) over samples, neurons and steps; reset to zero, v(0) = 0, Poisson input.

    A. Sengupta, Y. Ye, R. Wang, C. Liu and K. Roy, "Going deeper in spiking neural networks: VGG and residual
    architectures", Frontiers in Neuroscience 2019.

    It is measured layer by layer, with the thresholds before already set, and it is the weighted sum of one
    step, not the membrane. The paper's networks have no biases; `balancing` says how they are scaled here. At
    the end of a residual block there is one threshold, for the sum of what both branches bring in a step.
    """

    name = "spike-norm"
    needs_calibration = True
    converges = False  # a reset to zero loses what lies above the threshold, and how much hangs on the timing

    steps: int = 100
    """How many steps each layer is measured for; the paper's runs have 2500."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"{self.name} measures each layer for at least one step, got steps={self.steps}")

    @property
    def coding(self) -> Coding:
        return Poisson()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones(()), reset="zero")  # until it is measured

    def finish(self, conversion: "Conversion") -> None:
        balance(conversion, self.steps)
