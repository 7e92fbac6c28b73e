"""The plain conversion: weights unchanged, every threshold one."""

from dataclasses import dataclass

import torch

from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.balancing import match_network
from rheobase.network import IntegrateFire, Neuron, Poisson, Site


@dataclass(frozen=True)
class Cao(Method):
    """θ = 1 and spikes of 1 everywhere; reset to zero, v(0) = 0, Poisson input, nothing normalised.

    Y. Cao, Y. Chen and D. Khosla, "Spiking deep convolutional neural networks for energy-efficient object
    recognition", International Journal of Computer Vision 2015.

    Activations above 1 saturate. The paper's neuron may also leak and have a lowest potential; neither is
    implemented, as the plain neuron of its successors has neither.
    """

    name = "cao"
    converges = False  # a reset to zero loses what exceeds the threshold, and how much depends on the timing
    coding = Poisson()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones((), device="cpu"), reset="zero")

    def finish(self, conversion: Conversion) -> None:
        match_network(conversion)
