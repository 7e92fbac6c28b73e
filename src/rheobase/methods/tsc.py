"""Temporal-switch coding."""

from dataclasses import dataclass
from typing import Literal

import torch

from rheobase.methods.contract import Observer
from rheobase.methods.rmp import ResidualMembrane
from rheobase.network import Coding, Neuron, Site, Switch, TemporalSwitch


@dataclass(frozen=True)
class TSC(ResidualMembrane):
    """Inputs are two spikes in a window of N steps, on and off; thresholds are those of RMP.

    B. Han and K. Roy, "Deep spiking neural network: energy efficiency through time based coding", ECCV 2020.

    The paper does not say clearly what hidden neurons do, so there are two readings. By default they are RMP
    neurons. With hidden="switch" each collects its current over a whole window and then fires one pair of
    spikes itself: see `Switch`. Runs count a synapse at every step it is on, which is more operations than
    the two that the pair of spikes costs.
    """

    name = "tsc"

    window: int = 64
    """N: the steps of a run. Each layer is measured, and a searched factor judged, over as many."""

    hidden: Literal["rmp", "switch"] = "rmp"
    """The hidden neurons."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 2:
            raise ValueError(f"{self.name}: window must be at least 2 steps, got {self.window}")
        if self.hidden not in ("rmp", "switch"):
            raise ValueError(f"{self.name}: hidden must be 'rmp' or 'switch', got {self.hidden!r}")

    @property
    def coding(self) -> Coding:
        return TemporalSwitch(self.window)

    @property
    def duration(self) -> int:
        return self.window

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return (
            super().neuron(site, observer)
            if self.hidden == "rmp"
            else Switch(torch.ones((), device="cpu"), self.window)
        )
