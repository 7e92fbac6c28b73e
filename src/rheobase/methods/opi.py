"""Optimized potential initialisation."""

from dataclasses import dataclass

from rheobase.methods.tcl import TrainedClip
from rheobase.network import HALF


@dataclass(frozen=True)
class OPI(TrainedClip):
    """Trainable clipping, and every membrane starts at half its threshold.

    T. Bu, J. Ding, Z. Yu and T. Huang, "Optimized Potential Initialization for Low-latency Spiking Neural
    Networks", AAAI 2022.

    With z piecewise uniform the expected squared error is proportional to (θ − v(0))³ + v(0)³ and the
    expected error to (θ − v(0))² − v(0)²: the first is smallest, the second zero, at v(0) = θ/2.
    """

    name = "opi"
    initial = HALF
