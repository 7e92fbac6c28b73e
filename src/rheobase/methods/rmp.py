"""Residual membrane potential neurons."""

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch

from rheobase.io import display
from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.balancing import balance
from rheobase.methods.shared.settling import gather
from rheobase.network import IntegrateFire, Neuron, Poisson, Site
from rheobase.simulation import Simulator

_SEARCHED = 64

# The deeper a network, the further the currents of single steps exceed their mean, and the lower it must be.
_FACTORS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class ResidualMembrane(Method):
    """Base of the methods with RMP neurons: reset by subtraction, θ(l) = α·max of W(l)·s(l−1, t)."""

    cost = "runs"

    factor: float | None = None
    """α; None searches 0.3, 0.4 … 1.0 for the one with which the SNN gives the ANN's answer for most of 64
    calibration inputs; ties go to the smallest squared error of the outputs."""

    percentile: float | None = None
    """Use this percentile of the positive weighted sums, such as 99.9, instead of their maximum."""

    def __post_init__(self) -> None:
        if self.factor is not None and not self.factor > 0:
            raise ValueError(
                f"{self.name}: factor must be above zero, or None to search for it, got {self.factor}"
            )
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise ValueError(f"{self.name}: percentile must be in (0, 100], got {self.percentile}")
        if self.duration < 1:
            raise ValueError(f"{self.name}: runs need at least 1 step, got {self.duration}")

    @property
    @abstractmethod
    def duration(self) -> int:
        """Number of steps to measure layers for, and to judge a searched factor after."""

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones((), device="cpu"))  # until it is measured

    def finish(self, conversion: Conversion) -> None:
        factor = self.factor
        if factor is None:
            factor = self._search(conversion)
            conversion.snn.provenance.found["factor"] = factor
        self._balance(conversion, factor)

    def _balance(self, conversion: Conversion, factor: float) -> None:
        balance(conversion, self.duration, factor=factor, percentile=self.percentile)

    def _search(self, conversion: Conversion) -> float:
        few = gather(conversion, _SEARCHED)
        part = replace(conversion, calibration=lambda: iter([few]))
        scores = []
        with display("searching for the factor", len(_FACTORS)) as bar:
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

    Layers are measured one by one, with α already in the earlier thresholds. The paper uses Poisson input
    and v(0) = 0 but does not state its α. Later code by the same group has 0.7, with which a ResNet-20 with
    biases stays at chance for more than a hundred steps, so here it is searched. The paper's networks have no
    biases; `balancing` describes how they are scaled here.
    """

    name = "rmp"
    coding = Poisson()

    steps: int = 100
    """Number of steps to measure each layer for, and to judge a searched factor after."""

    @property
    def duration(self) -> int:
        return self.steps


def _score(conversion: Conversion, steps: int) -> tuple[int, float]:
    """How many classes agree with the ANN's, where outputs are classes, and the negative squared error."""
    same, error, first_sample = 0, 0.0, 0
    for x in conversion.calibration():
        output = Simulator(conversion.snn, x, steps, at=[steps]).run(x, first_sample).logits[0]
        with torch.no_grad():
            expected = conversion.ann.module(x)
        if output.dim() == 2 and output.shape[1] > 1:
            same += int((output.argmax(1) == expected.argmax(1)).sum())
        error += (output - expected).double().square().sum().item()
        first_sample += x.shape[0]
    return same, -error
