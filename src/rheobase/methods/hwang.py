"""Pre-charged membranes."""

from dataclasses import dataclass

from rheobase.methods.max_norm import MaxNorm
from rheobase.network import Objective, Searched


@dataclass(frozen=True)
class Hwang(MaxNorm):
    """θ = the largest activation over the calibration data; the start of each layer is searched.

    S. Hwang, J. Chang, M.-H. Oh, K. K. Min, T. Jang, K. Park, J. Yu, J.-H. Lee and B.-G. Park, "Low-latency
    spiking neural networks using pre-charged membrane potential and delayed evaluation", Frontiers in
    Neuroscience 2021.

    `Searched` describes the search; it works with every other method too. The second part of the paper, not
    to count the first outputs, is the `delay` of `simulate` and `evaluate`.
    """

    name = "hwang"
    cost = "runs"  # to search the starts

    steps: int = 8
    """Number of steps that the network will run."""
    objective: Objective = "absolute"
    """What the search minimises; see `Searched`."""

    def __post_init__(self) -> None:
        Searched(self.steps, objective=self.objective)  # checks both

    @property
    def initial(self) -> Searched:
        return Searched(self.steps, objective=self.objective)
