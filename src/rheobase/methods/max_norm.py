"""Data-based maximum normalisation in its modern form."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

from rheobase.methods.contract import Cost, Method, Observer
from rheobase.methods.shared.observers import Maximum
from rheobase.network import IntegrateFire, Neuron, Site


@dataclass(frozen=True)
class Normalised(Method):
    """Base of the methods with θ = the largest activation of the site over the calibration data."""

    cost: ClassVar[Cost] = "observes"

    def observe(self, site: Site) -> Observer:
        return Maximum()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Maximum)
        return IntegrateFire(observer.value)


@dataclass(frozen=True)
class MaxNorm(Normalised):
    """θ = the largest activation of the site over the calibration data; reset by subtraction, v(0) = 0.

    The modern form of P. U. Diehl et al., "Fast-classifying, high-accuracy spiking deep networks through
    weight and threshold balancing", IJCNN 2015.
    """

    name = "max-norm"

    per_channel: bool = field(default=False, kw_only=True)
    """One threshold for each channel instead of one for the layer."""

    def variants(self) -> Iterator[tuple[str, Self]]:
        if not self.per_channel:
            yield "a threshold for each channel", replace(self, per_channel=True)

    def observe(self, site: Site) -> Observer:
        return Maximum(self.per_channel)
