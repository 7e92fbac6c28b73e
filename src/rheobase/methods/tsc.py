"""Temporal-switch coding."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rheobase.coding import Coding, TemporalSwitch
from rheobase.graph import Site
from rheobase.methods.base import Observer
from rheobase.methods.rmp import ResidualMembrane
from rheobase.neurons import Neuron
from rheobase.operations import along_channels


@dataclass(frozen=True)
class TSC(ResidualMembrane):
    """Inputs are two spikes in a window of N steps, on and off; thresholds are those of RMP.

    B. Han and K. Roy, "Deep spiking neural network: energy efficiency through time based coding", ECCV 2020.

    What hidden neurons do is not certain from the paper, so there are two readings. By default they are RMP
    neurons. With hidden="switch" each gathers its current over a whole window and then fires one pair of
    spikes itself: see `Switch`. Runs count a synapse at every step it is on, and so more operations than
    the two which the pair of spikes costs.
    """

    name = "tsc"

    window: int = 64
    """N, the steps of a run; each layer is measured for as many, and a searched factor judged after them."""

    hidden: Literal["rmp", "switch"] = "rmp"
    """What the neurons behind the input are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 2:
            raise ValueError(f"{self.name}: a window has at least 2 steps, got window={self.window}")
        if self.hidden not in ("rmp", "switch"):
            raise ValueError(f"{self.name}: hidden must be 'rmp' or 'switch', got {self.hidden!r}")

    @property
    def coding(self) -> Coding:
        return TemporalSwitch(self.window)

    @property
    def duration(self) -> int:
        return self.window

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        return super().neuron(site, observer) if self.hidden == "rmp" else Switch(torch.ones(()), self.window)


class Switch(Neuron):
    """Gathers current over a window of N steps, then switches its synapses on for a part of the next.

    v = v(0) + ΣI(t);  p = v/(N·θ), kept in 0 … 1;  the synapses are on for floor(p·(N − 1)) steps. That is
    p* − 1 for the two spikes of `coding.TemporalSwitch`, and as there the sum of the spikes so far is given.

    A run has N steps exactly. On hardware each layer fires one window after the one before it.
    """

    def __init__(self, threshold: Tensor, window: int) -> None:
        super().__init__(threshold)
        self._window = window

    @property
    def window(self) -> int:
        return self._window

    def forward(self, z: Tensor) -> Tensor:
        """The mean output that a mean input z tends to as windows get longer."""
        return (z / along_channels(self.threshold, z.dim())).clamp(0, 1) * along_channels(
            self.amplitude, z.dim()
        )

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        N = self.window
        current_NB = current.expand(N, *membrane.shape)
        for step in current_NB:  # one by one, so that no sum depends on the batch
            membrane += step
        share = (membrane / along_channels(self.threshold, membrane.dim()) / N).clamp(0, 1)
        on = (share * (N - 1)).floor()
        before = torch.arange(N, device=on.device).view(-1, *[1] * on.dim())
        return (before < on) * along_channels(self.amplitude, membrane.dim())

    def extra_repr(self) -> str:
        return f"threshold={self.threshold.item():.4g}, window={self.window}, initial={self.initial}"
