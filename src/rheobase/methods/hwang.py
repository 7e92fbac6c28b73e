"""Pre-charged membranes."""

from dataclasses import dataclass

from rheobase.methods.contract import Maximum, Method, Observer
from rheobase.network import IntegrateFire, Neuron, Objective, Searched, Site


@dataclass(frozen=True)
class Hwang(Method):
    """θ = the largest activation over the calibration data; the start of each layer is searched.

    S. Hwang, J. Chang, M.-H. Oh, K. K. Min, T. Jang, K. Park, J. Yu, J.-H. Lee and B.-G. Park, "Low-latency
    spiking neural networks using pre-charged membrane potential and delayed evaluation", Frontiers in
    Neuroscience 2021.

    `Searched` says how, and goes with every other method too. The paper's second part, to let outputs count
    only after a while, is the `delay` of `simulate` and `evaluate`.
    """

    name = "hwang"
    needs_calibration = True

    steps: int = 8
    """How many steps the network shall run."""
    objective: Objective = "absolute"
    """What the search minimises; see `Searched`."""
    per_channel: bool = False
    """One threshold for each channel instead of one for the layer."""

    def __post_init__(self) -> None:
        Searched(self.steps, objective=self.objective)  # which checks them

    def observe(self, site: Site) -> Observer:
        return Maximum(self.per_channel)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Maximum)
        assert observer.value is not None
        return IntegrateFire(observer.value)

    @property
    def initial(self) -> Searched:
        return Searched(self.steps, objective=self.objective)
