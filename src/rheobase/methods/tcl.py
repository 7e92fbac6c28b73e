"""Trainable clipping layers."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from rheobase.methods.contract import Method, Observer
from rheobase.network import Clip, IntegrateFire, Neuron, Site


@dataclass(frozen=True)
class TrainedClip(Method):
    """Base of the methods with a trained clip: a = clip(z, 0, θ) in training, and θ is the threshold."""

    needs_training = True
    own_activation = True

    trains: ClassVar[type[Clip]] = Clip
    """The activation whose θ is the threshold."""

    start: float = 4.0
    """θ before training."""

    def activation(self, site: Site) -> nn.Module:
        return self.trains(self.start if site.bound is None else min(self.start, site.bound))

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        if not isinstance(site.activation, self.trains):
            raise ValueError(
                f"{self.name} needs a trained {self.trains.__name__} at every site, but site {site.name!r} "
                f"holds {type(site.activation).__name__}: train rheobase.prepare(model, {self.name!r}) and "
                "convert that, or choose a method that takes thresholds from data, such as robust-norm"
            )
        return IntegrateFire(site.activation.threshold.new_tensor(site.activation.bound))


@dataclass(frozen=True)
class TCL(TrainedClip):
    """Trainable clipping layers; every membrane starts at zero.

    N.-D. Ho and I.-J. Chang, "TCL: an ANN-to-SNN conversion with trainable clipping layers", 2020.

    The paper does not say clearly what θ starts at before training; 4.0 is this package's choice.
    """

    name = "tcl"
