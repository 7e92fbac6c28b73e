"""Threshold ReLU and a shift."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from rheobase.methods.contract import Maximum, Method, Observer
from rheobase.methods.shared.shifting import shift_by_half
from rheobase.network import IntegrateFire, Neuron, Rectifier, Site

if TYPE_CHECKING:
    from rheobase.methods.contract import Conversion


@dataclass(frozen=True)
class Opt(Method):
    """θ = the largest activation over the calibration data, and θ/(2·T) more current at every step.

    S. Deng and S. Gu, "Optimal conversion of conventional artificial neural networks to spiking neural
    networks", ICLR 2021.

    In training a = min(max(z, 0), y) with a fixed y; the gradient is one in between. Membranes start at zero
    and reset by subtraction. After the T steps it is meant for the shift has brought θ/2, so at constant
    current the spike count is floor((T·z + θ/2)/θ), that of a start at half the threshold. (So with such a
    start as well, the half counts twice, and the network does worse.)

    Readings: every site is shifted, also behind a residual add, where the authors' code leaves it out; the
    read-out is linear, where theirs fires; their optional shift of the activation in training is left out.
    """

    name = "opt"
    needs_calibration = True

    steps: int
    """T: how many steps the network shall run."""
    ceiling: float = 1.0
    """y: where the activation is cut in training; the paper has 1 for CIFAR-10 and 2 for CIFAR-100."""

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"opt: steps must be a whole number of at least 1, got {self.steps!r}")
        if not self.ceiling > 0:
            raise ValueError(f"opt: ceiling must be above zero, got {self.ceiling}")

    @classmethod
    def example(cls) -> "Opt":
        return cls(steps=32)

    def activation(self, site: Site) -> nn.Module:
        return Rectifier(self.ceiling if site.bound is None else min(self.ceiling, site.bound))

    def observe(self, site: Site) -> Observer:
        return Maximum()

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Maximum)
        assert observer.value is not None
        return IntegrateFire(observer.value)

    def finish(self, conversion: "Conversion") -> None:
        shift_by_half(conversion.snn, self.steps)
