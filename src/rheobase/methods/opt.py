"""Threshold ReLU and a shift."""

from dataclasses import dataclass
from typing import Self

from torch import nn

from rheobase.methods.contract import Conversion
from rheobase.methods.max_norm import Normalised
from rheobase.methods.shared.shifting import shift_by_half
from rheobase.network import Rectifier, Site


@dataclass(frozen=True)
class Opt(Normalised):
    """θ = the largest activation over the calibration data, and θ/(2·T) more current at every step.

    S. Deng and S. Gu, "Optimal conversion of conventional artificial neural networks to spiking neural
    networks", ICLR 2021.

    In training a = min(max(z, 0), y) with a fixed y; the gradient is one in between. Membranes start at zero
    and reset by subtraction. After the T steps it is meant for, the shift has added θ/2, so at constant
    current the spike count is floor((T·z + θ/2)/θ), that of a start at half the threshold. (With such a start
    as well, the half counts twice and the network gets worse.)

    Deviations from the authors' code: every site is shifted, also after a residual add, where theirs leaves
    it out; the read-out is linear, where theirs fires; their optional shift of the activation in training is
    left out.
    """

    name = "opt"
    fits = "biases"
    aims_at_steps = True
    own_activation = True

    steps: int
    """T: number of steps that the network will run."""
    ceiling: float = 1.0
    """y: where the activation is clipped in training; the paper uses 1 for CIFAR-10 and 2 for CIFAR-100."""

    def __post_init__(self) -> None:
        self._expect_integer("steps")
        if not self.ceiling > 0:
            raise ValueError(f"opt: ceiling must be above zero, got {self.ceiling}")

    @classmethod
    def example(cls) -> Self:
        return cls(steps=32)

    def activation(self, site: Site) -> nn.Module:
        return Rectifier(self.ceiling if site.bound is None else min(self.ceiling, site.bound))

    def finish(self, conversion: Conversion) -> None:
        shift_by_half(conversion.snn, self.steps)
