"""Data-based maximum normalisation, as it is used today."""

from dataclasses import dataclass

from rheobase.methods.contract import Maximum, Method, Observer
from rheobase.network import IntegrateFire, Neuron, Site


@dataclass(frozen=True)
class MaxNorm(Method):
    """θ = the largest activation of the site over the calibration data; reset by subtraction, v(0) = 0.

    The modern form of P. U. Diehl et al., "Fast-classifying, high-accuracy spiking deep networks through
    weight and threshold balancing", IJCNN 2015.
    """

    name = "max-norm"
    needs_calibration = True

    per_channel: bool = False
    """One threshold for each channel instead of one for the layer."""

    def observe(self, site: Site) -> Observer:
        return Maximum(self.per_channel)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Maximum)
        assert observer.value is not None
        return IntegrateFire(observer.value)
