"""Temporal-switch coding."""

from dataclasses import dataclass

from rheobase.coding import Coding, TemporalSwitch
from rheobase.methods.rmp import ResidualMembrane


@dataclass(frozen=True)
class TSC(ResidualMembrane):
    """Inputs as two spikes in a window, on and off; RMP neurons behind them.

    B. Han and K. Roy, "Deep spiking neural network: energy efficiency through time based coding", ECCV 2020.
    """

    name = "tsc"

    window: int = 64
    """The steps of a window, which is the run; layers are measured for as many."""

    @property
    def coding(self) -> Coding:
        return TemporalSwitch(self.window)

    @property
    def duration(self) -> int:
        return self.window
