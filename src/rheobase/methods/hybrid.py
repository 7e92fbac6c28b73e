"""Hybrid training: convert, then train the spiking network itself."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from rheobase.methods import fine_tuning
from rheobase.methods.contract import Conversion, Method, Observer, Tuning
from rheobase.methods.shared.balancing import balance
from rheobase.network import SNN, IntegrateFire, Neuron, Poisson, Site
from rheobase.simulation import Triangle
from rheobase.training import Folder, Split

_SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-4, "relative": False, "weight_decay": 5e-4, "dropout": 0.3, "thresholds": False,
    "surrogate": Triangle(), "schedule": "constant",
}  # fmt: skip


def fine_tune(snn: SNN, data: Split | Folder, steps: int, **settings: Any) -> SNN:
    """Train a converted network with the settings of the authors' code, which has runs of 100 and more steps.

    These are a learning rate of 10⁻⁴, a weight decay of 5·10⁻⁴ and a dropout of 0.3, with thresholds that are
    not trained. Their code minimises the cross-entropy of the sum of the outputs instead of the mean.

    Args:
        snn: The converted network.
        data: Training images with labels.
        steps: Number of time steps.
        **settings: Others than these, as `rheobase.fine_tune` takes them.
    """
    return fine_tuning.fine_tune(snn, data, steps, **(_SETTINGS | settings))


@dataclass(frozen=True)
class Hybrid(Method):
    """θ = 0.7 times the largest current of the running network, layer by layer; then `hybrid.fine_tune`.

    N. Rathi, G. Srinivasan, P. Panda and K. Roy, "Enabling deep spiking neural networks with hybrid
    conversion and spike timing dependent backpropagation", ICLR 2020.

    The conversion is threshold balancing with Poisson input and v(0) = 0; neurons reset by subtraction.
    Deviations from the authors' code: a layer is measured with the factor already in the thresholds before
    it; signals arrive in the step they are sent in, where theirs delays each layer by a step; a neuron fires
    also at its threshold, where theirs must exceed it; residual blocks are balanced like all others, which
    their code leaves out.
    """

    name = "hybrid"
    cost = "runs"
    tuning = Tuning("snn", fine_tune)
    coding = Poisson()

    factor: float = 0.7
    """Multiplies the largest current."""
    steps: int = 100
    """Number of steps to measure each layer for."""

    def __post_init__(self) -> None:
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise ValueError(f"hybrid: factor must be above zero, got {self.factor}")
        self._expect_integer("steps")

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return IntegrateFire(torch.ones((), device="cpu"))  # until it is measured

    def finish(self, conversion: Conversion) -> None:
        balance(conversion, self.steps, factor=self.factor)
