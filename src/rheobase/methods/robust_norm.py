"""Robust normalisation by a percentile."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.observers import Quantile
from rheobase.network import GatedMaxPool, IntegrateFire, MaxPool, Neuron, Site


@dataclass(frozen=True)
class RobustNorm(Method):
    """θ = the 99.9th percentile of the site's activations over the calibration data; v(0) = 0.

    B. Rueckauer, I.-A. Lungu, Y. Hu, M. Pfeiffer and S.-C. Liu, "Conversion of continuous-valued deep
    networks to efficient event-driven networks for image classification", Frontiers in Neuroscience 2017.

    Unlike the maximum, a percentile does not depend on a few outliers; activations above it saturate. Average
    pooling stays as it is, where the authors' toolbox gives it its own neurons. The read-out is linear, where
    the toolbox draws spikes from its softmax.
    """

    name = "robust-norm"
    cost = "observes"

    percentile: float = 99.9
    over: Literal["nonzero", "all"] = "nonzero"
    """Which activations count: those that are not zero, as in the authors' toolbox, or all."""
    per_channel: bool = False
    """One threshold for each channel instead of one for the layer."""
    max_pool: Literal["accumulate", "gate"] = "accumulate"
    """Max-pooling in spikes: "accumulate" takes the exact maximum of the sums; "gate", as in the paper,
    passes the current spike of the neuron that has fired most."""

    def __post_init__(self) -> None:
        if not 0 < self.percentile <= 100:
            raise ValueError(f"{self.name}: percentile must be in (0, 100], got {self.percentile}")
        if self.over not in ("nonzero", "all"):
            raise ValueError(f"{self.name}: over must be 'nonzero' or 'all', got {self.over!r}")
        if self.max_pool not in ("accumulate", "gate"):
            raise ValueError(f"{self.name}: max_pool must be 'accumulate' or 'gate', got {self.max_pool!r}")

    def variants(self) -> Iterator[tuple[str, Self]]:
        for percentile in (99.0, 99.9, 99.99, 100.0):
            if percentile != self.percentile:
                yield f"percentile {percentile:g}", replace(self, percentile=percentile)
        if not self.per_channel:
            yield "a threshold for each channel", replace(self, per_channel=True)

    def observe(self, site: Site) -> Observer:
        return Quantile(self.percentile / 100, zeros=self.over == "all", per_channel=self.per_channel)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Quantile)
        return IntegrateFire(observer.value)

    def finish(self, conversion: Conversion) -> None:
        if self.max_pool == "gate":
            module = conversion.snn.module
            for name, pool in list(module.named_modules()):
                if isinstance(pool, MaxPool):
                    module.set_submodule(name, GatedMaxPool(pool.pool))
