"""Few-spikes neurons."""

import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.balancing import match_network
from rheobase.methods.shared.few_spikes_fit import Fit, fit
from rheobase.methods.shared.observers import Maximum, Quantile
from rheobase.network import Coefficients, FewSpikes, Neuron, Site, Smooth

__all__ = ["FS", "Fit", "Table", "fit", "tables"]


@dataclass(frozen=True)
class Table:
    """A fit with its function and its range of inputs."""

    function: str
    bounds: tuple[float, float]
    fit: Fit

    @property
    def steps(self) -> int:
        """K."""
        return len(self.fit.coefficients.values)


@dataclass(frozen=True)
class FS(Method):
    """Neurons that code a value in K steps, each spike worth what its step is worth.

    C. Stöckl and W. Maass, "Optimized spiking neurons can classify images with high accuracy through temporal
    coding with two spikes", Nature Machine Intelligence 2021.

    For ReLU: T_t = h_t = d_t = α·2^−t, the binary digits of the activation; α is the largest activation over
    the calibration data or a percentile, where the authors fix it at 25. For SiLU, GELU and sigmoid the
    package contains tables of fitted coefficients; `few_spikes.fit` makes others. Networks need no training.
    A run has exactly K steps and one answer, at its end; `FewSpikes` describes the rule and its latency.

    A start is in units of the smallest spike: zero rounds down, as in the paper, half rounds to nearest.
    """

    name = "few-spikes"
    cost = "observes"
    converges = False
    handles = ("silu", "gelu", "sigmoid")

    steps: int = 10
    """K."""
    percentile: float | None = None
    """α as this percentile of the positive activations instead of their maximum."""
    per_channel: bool = False
    """One α for each channel of a ReLU instead of one for the layer."""
    strict: bool = False
    """Whether a neuron fires only above a threshold, as in the paper, or also at it."""
    tables: tuple[Table, ...] = ()
    """Your own tables; they replace the package's for the same function."""

    def __post_init__(self) -> None:
        self._expect_integer("steps")
        if self.percentile is not None and not 0 < self.percentile <= 100:
            raise ValueError(f"few-spikes: percentile must be in (0, 100], got {self.percentile}")

    @classmethod
    def example(cls) -> Self:
        return cls(steps=6)

    def variants(self) -> Iterator[tuple[str, Self]]:
        if not self.per_channel:
            yield "a threshold for each channel", replace(self, per_channel=True)

    def activation(self, site: Site) -> nn.Module:
        return site.activation if isinstance(site.activation, Smooth) else super().activation(site)

    def observe(self, site: Site) -> Observer:
        if self.percentile is None or isinstance(site.activation, Smooth):
            return Maximum(self.per_channel)
        return Quantile(self.percentile / 100, per_channel=self.per_channel)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        assert isinstance(observer, Maximum | Quantile)
        if isinstance(site.activation, Smooth):
            return self._fitted(site, site.activation.name, observer.value)
        return FewSpikes(observer.value, Coefficients.binary(self.steps), strict=self.strict)

    def finish(self, conversion: Conversion) -> None:
        match_network(conversion)

    def _fitted(self, site: Site, function: str, largest: Tensor) -> Neuron:
        fitting = self._find_tables(function)
        if not fitting:
            raise ValueError(
                f"site {site.name!r} is a {function}, and no table for it has {self.steps} steps or fewer: "
                "raise steps, or pass tables= with one that few_spikes.fit makes"
            )
        reach = 0.0 if function == "sigmoid" else largest.max().item()
        holding = [t for t in fitting if t.bounds[1] >= reach]
        if not holding:
            warnings.warn(
                f"site {site.name!r} reaches {reach:.4g} on the calibration data, beyond every table for "
                f"{function}: larger values are clipped; pass tables= with a wider one",
                stacklevel=4,
            )
        width = 1 if holding else -1  # the narrowest that holds, or the widest there is
        table = min(holding or fitting, key=lambda t: (-t.steps, width * t.bounds[1]))
        one = torch.ones((), dtype=torch.float64, device="cpu")
        return FewSpikes(one, _pad(table.fit.coefficients, self.steps), function, strict=self.strict)

    def _find_tables(self, function: str) -> list[Table]:
        """Tables for a function with at most K steps: the user's, or else the package's."""
        for source in (self.tables, tables()):
            name = function.removesuffix(
                "-tanh"
            )  # the two forms of GELU differ by less than any table's error
            if found := [t for t in source if t.function == name and t.steps <= self.steps]:
                return found
        return []


def _pad(coefficients: Coefficients, steps: int) -> Coefficients:
    """The same coefficients with silent steps at the end."""
    more = steps - len(coefficients.values)
    return replace(
        coefficients,
        thresholds=coefficients.thresholds + (torch.finfo(torch.float32).max,) * more,
        resets=coefficients.resets + (0.0,) * more,
        values=coefficients.values + (0.0,) * more,
    )


@cache
def tables() -> tuple[Table, ...]:
    """The package's tables; the file states the arguments of `fit` for each."""
    entries = json.loads(Path(__file__).with_name("few_spikes.json").read_text(encoding="utf-8"))
    return tuple(
        Table(entry["function"], tuple(entry["bounds"]), Fit(_read(entry), entry["error"]))
        for entry in entries["tables"]
    )


def _read(entry: dict[str, list[float]]) -> Coefficients:
    return Coefficients(*(tuple(entry[name]) for name in ("thresholds", "resets", "values")))
