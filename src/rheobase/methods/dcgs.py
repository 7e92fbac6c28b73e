"""Differential coding with graded events."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.methods.contract import Conversion, Observer
from rheobase.methods.hmt import HMT, best_quantum
from rheobase.methods.shared.balancing import set_threshold
from rheobase.network import ZERO, Differential, Neuron, Site


@dataclass(frozen=True)
class DCGS(HMT):
    """Events of n sizes and both signs change the mean that receivers assume; θ suits normal currents.

    Z. Huang et al., "Differential coding for training-free ANN-to-SNN conversion", ICML 2025.

    An event s at step t adds s/t to the mean. A neuron sends the largest of ±θ, ±θ/2 … ±θ·2^(1−n) that its
    membrane reaches to three quarters, a negative one only if as much has been sent; v(0) = 0. θ is T·2^n
    times the quantum that `hmt` finds for normal currents and T·2^n levels: with its start, and after its 100
    rounds, which are too few for the least squared error with many levels.

    Readings: the simulation sends the mean and the event together, which is the same sum; events alone are
    counted. Below a bound, such as that of a trained clip, no event raises the mean above it. Statistics come
    from the calibration data, where the authors' code takes those of the test data.

    It has 2·n lines, one of which is active at a time. The first step, with the input at zero, tells neurons
    their biases: the true latency is 1 + T.
    """

    name = "dcgs"
    initial = ZERO

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return Differential(torch.ones((), device="cpu"), sizes=self.members)  # until it is measured

    def tune(self, conversion: Conversion, site: Site, mean: Tensor, deviation: Tensor) -> None:
        levels = self.steps * 2**self.members
        theta = levels * best_quantum(mean, deviation, levels)
        set_threshold(conversion, site, theta.to(conversion.snn.dtype))
        neuron = conversion.snn.neuron(site.name)
        assert isinstance(neuron, Differential)
        if site.bound is not None:
            neuron.bound = site.bound / neuron.threshold
        conversion.snn.delay = 1
