"""Robust normalisation by a percentile."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rheobase.methods.contract import Method, Observer
from rheobase.methods.shared.observers import Quantile
from rheobase.network import GatedMaxPool, IntegrateFire, MaxPool, Neuron, Site

if TYPE_CHECKING:
    from rheobase.methods.contract import Conversion


@dataclass(frozen=True)
class RobustNorm(Method):
    """θ = the 99.9th percentile of the site's activations over the calibration data; v(0) = 0.

    B. Rueckauer, I.-A. Lungu, Y. Hu, M. Pfeiffer and S.-C. Liu, "Conversion of continuous-valued deep
    networks to efficient event-driven networks for image classification", Frontiers in Neuroscience 2017.

    Unlike the maximum it does not hang on a few outliers; what lies above it saturates. Average pooling stays
    what it is, where the authors' toolbox gives it neurons of its own, and the read-out is linear, where the
    toolbox draws spikes from its softmax.
    """

    name = "robust-norm"
    needs_calibration = True

    percentile: float = 99.9
    over: Literal["nonzero", "all"] = "nonzero"
    """Which activations count: those that are not zero, as in the authors' toolbox, or all."""
    per_channel: bool = False
    """One threshold for each channel instead of one for the layer."""
    max_pool: Literal["accumulate", "gate"] = "accumulate"
    """How max-pooling works in spikes: exactly on the sums, or as in the paper, by letting the current spike
    of that neuron pass which has fired most."""

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise ValueError(f"{self.name}: percentile must lie in (0, 100], got {self.percentile}")
        if self.over not in ("nonzero", "all"):
            raise ValueError(f"{self.name}: over must be 'nonzero' or 'all', got {self.over!r}")
        if self.max_pool not in ("accumulate", "gate"):
            raise ValueError(f"{self.name}: max_pool must be 'accumulate' or 'gate', got {self.max_pool!r}")

    def observe(self, site: Site) -> Observer:
        return Quantile(self.percentile / 100, zeros=self.over == "all", per_channel=self.per_channel)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Quantile)
        return IntegrateFire(observer.value)

    def finish(self, conversion: "Conversion") -> None:
        if self.max_pool == "gate":
            module = conversion.snn.module
            for name, pool in list(module.named_modules()):
                if isinstance(pool, MaxPool):
                    module.set_submodule(name, GatedMaxPool(pool.pool))
