"""Residual membrane potential neurons."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from rheobase.io import display
from rheobase.methods.contract import Method, Observer
from rheobase.methods.shared.balancing import balance
from rheobase.methods.shared.settling import gather
from rheobase.network import Coding, IntegrateFire, Neuron, Poisson, Site
from rheobase.simulation import simulate

if TYPE_CHECKING:
    from rheobase.methods.contract import Conversion

_SEARCHED = 64

# The deeper a network, the further currents of single steps exceed their mean, and the lower it must be.
_FACTORS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class ResidualMembrane(Method):
    """What methods with RMP neurons share: reset by subtraction, θ(l) = α·max of W(l)·s(l−1, t)."""

    needs_calibration = True

    factor: float | None = None
    """α; None chooses the one of 0.3, 0.4 … 1.0 with which most of 64 calibration inputs get the answer of
    the ordinary network; among equals that whose outputs are closest to its outputs, by their squares."""

    percentile: float | None = None
    """Instead of the maximum take this percentile of the positive weighted sums, such as 99.9."""

    def __post_init__(self) -> None:
        if self.factor is not None and not self.factor > 0:
            raise ValueError(
                f"{self.name}: factor must be above zero, or None to search it, got {self.factor}"
            )
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise ValueError(f"{self.name}: percentile must lie in (0, 100], got {self.percentile}")
        if self.duration < 1:
            raise ValueError(f"{self.name} needs at least one step, got {self.duration}")

    @property
    @abstractmethod
    def duration(self) -> int:
        """For how many steps layers are measured, and after how many a searched factor is judged."""

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones(()))  # until it is measured

    def finish(self, conversion: "Conversion") -> None:
        factor = self.factor
        if factor is None:
            factor = self._search(conversion)
            conversion.snn.provenance.found["factor"] = factor
        self._balance(conversion, factor)

    def _balance(self, conversion: "Conversion", factor: float) -> None:
        balance(conversion, self.duration, factor=factor, percentile=self.percentile)

    def _search(self, conversion: "Conversion") -> float:
        few = gather(conversion, _SEARCHED)
        part = replace(conversion, calibration=lambda: iter([few]))
        scores = []
        with display("searching the factor", len(_FACTORS)) as bar:
            for factor in _FACTORS:
                self._balance(part, factor)
                scores.append(_score(part, self.duration))
                bar.advance()
        return _FACTORS[scores.index(max(scores))]


@dataclass(frozen=True)
class RMP(ResidualMembrane):
    """RMP-SNN: θ(l) = α·max of W(l)·s(l−1, t), measured with neurons that keep their residual potential.

    B. Han, G. Srinivasan and K. Roy, "RMP-SNN: residual membrane potential neuron for enabling deeper
    high-accuracy and low-latency spiking neural network", CVPR 2020.

    Layers are measured one by one, with α already in the thresholds before. The paper has Poisson input and
    v(0) = 0; what its α is cannot be told from it. Later code by the same group has 0.7, with which a
    ResNet-20 with biases stays at chance for a hundred steps and more: so here it is searched. The paper's
    networks have no biases; `balancing` says how they are scaled here.
    """

    name = "rmp"

    steps: int = 100
    """How many steps each layer is measured for, and after how many a searched factor is judged."""

    @property
    def coding(self) -> Coding:
        return Poisson()

    @property
    def duration(self) -> int:
        return self.steps


def _score(conversion: "Conversion", steps: int) -> tuple[int, float]:
    """How like the ordinary network the spiking one answers after these steps; more is better."""
    same, error, first_sample = 0, 0.0, 0
    for x in conversion.calibration():
        output = simulate(conversion.snn, x, steps, at=[steps], first_sample=first_sample).logits[0]
        with torch.no_grad():
            expected = conversion.ann.module(x)
        same += int((output.argmax(-1) == expected.argmax(-1)).sum())
        error += (output - expected).double().square().sum().item()
        first_sample += x.shape[0]
    return same, -error
