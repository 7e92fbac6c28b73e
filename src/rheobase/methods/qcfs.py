"""Quantisation clip-floor-shift."""

from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from rheobase.methods.tcl import TrainedClip
from rheobase.network import HALF, Network, QuantisedClip, Site


@dataclass(frozen=True)
class QCFS(TrainedClip):
    """Trainable clipping with quantised activations; every membrane starts at half its threshold.

    T. Bu, W. Fang, J. Ding, P. Dai, Z. Yu and T. Huang, "Optimal ANN-SNN Conversion for High-accuracy and
    Ultra-low-latency Spiking Neural Networks", ICLR 2022.

    In training a = θ·clip(⌊zL/θ + ½⌋/L, 0, 1). Under a constant current z that is what a neuron with
    v(0) = θ/2 has sent after T = L steps; behind other neurons currents are uneven, and T = L is not exact.
    `sigma-delta` converts the trained network exactly, without data.

    Readings: θ is one number per layer, starts at 8 and stays above 10⁻³; its gradient is what autograd gives
    for a clip before the rounding, as in the authors' code, where the paper prints another one. Latency T,
    one line per neuron.

    The captured ANN keeps the quantised activations, so methods that measure the network see them; a long
    run of rate-coded neurons approaches the clip without the rounding.
    """

    name = "qcfs"
    initial = HALF
    trains = QuantisedClip

    start: float = 8.0
    levels: int = 8
    """L: 4 is enough for many networks with ten classes."""

    def __post_init__(self) -> None:
        whole = isinstance(self.levels, int) and not isinstance(self.levels, bool)
        if not whole or not 1 <= self.levels <= 2**20:
            raise ValueError(f"qcfs: levels must be an integer in 1 … 2^20, got {self.levels!r}")

    def trained_as(self, network: Network) -> Self:
        clips = [site.activation for site in network.sites if isinstance(site.activation, QuantisedClip)]
        found = {clip.grid.levels for clip in clips}
        if found and self.levels not in {*found, QCFS.levels}:
            raise ValueError(
                f"qcfs: the network was trained with {sorted(found)} levels, not {self.levels}: leave "
                "levels out of convert"
            )
        return replace(self, levels=found.pop()) if len(found) == 1 else self

    def activation(self, site: Site) -> nn.Module:
        return QuantisedClip(self.start if site.bound is None else min(self.start, site.bound), self.levels)
