"""Sigma-delta conversion: the sum code."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
from torch import Tensor, nn

from rheobase.methods.contract import Cost, Method, Observer
from rheobase.methods.shared.histograms import Histogram
from rheobase.network import HALF, UNSIGNED, Activation, Grid, Initial, Neuron, SigmaDelta, Site, Smooth

_FINEST = 2**20


@dataclass(frozen=True)
class SumCode(Method):
    """Neurons send the changes of their activation, rounded to multiples of a quantum, until nothing changes.

    A value is the sum of what was sent, not a mean. Input and biases enter once, events are ±2^k, and a
    neuron can take back what it sent. When nothing fires any more, every site holds its activation rounded to
    the nearest of its levels, whatever the order and timing of the events: the network has computed the
    quantised ANN, `snn.limit`, exactly. No training is needed, and every elementwise activation converts.

    The rule for ReLU is that of K. You et al., "SpikeZIP-TF: Conversion is All You Need for Transformer-based
    SNN", ICML 2024, with events of several sizes; sums instead of rates as in sigma-delta networks.

    A site that is quantised already, as `qcfs` trains it, keeps its own quantum and levels, with or without
    data: `snn.limit` is then the trained network. The quantum of any other site is chosen on calibration data
    by least squared error, or is θ over the levels for activations with a bound θ (trained clips, ReLU6,
    sigmoid) if there is no data.
    """

    name = "sigma-delta"
    code = "sum"
    handles = ("silu", "sigmoid", "tanh", "gelu", "hard-sigmoid", "hard-swish", "leaky-relu", "elu")

    levels: int = 32
    """L: the largest count of a neuron; signed sites count from −L to L. Quantised sites have their own."""
    sizes: int | Literal["any"] = 5
    """The number of sizes of an event: 1 sends ±1 only, 3 sends ±1, ±2 and ±4; "any" sends the whole
    difference at once, a graded spike."""
    per_channel: bool = True
    """One quantum for each channel instead of one for the layer. Without data there is one for the layer."""

    def __post_init__(self) -> None:
        whole = isinstance(self.levels, int) and not isinstance(self.levels, bool)
        if not whole or not 2 <= self.levels <= _FINEST:
            raise ValueError(f"sigma-delta: levels must be an integer in 2 … 2^20, got {self.levels!r}")
        if self.sizes == "any":
            return
        whole = isinstance(self.sizes, int) and not isinstance(self.sizes, bool)
        if not whole or self.sizes < 1:
            raise ValueError(
                f"sigma-delta: sizes must be an integer of at least 1 or 'any', got {self.sizes!r}"
            )
        if 2 ** (self.sizes - 1) > self.levels:
            raise ValueError(
                f"sigma-delta: {self.sizes} sizes reach up to {2 ** (self.sizes - 1)}, above the "
                f"{self.levels} levels: use at most {self.levels.bit_length()} sizes, or more levels"
            )

    @property
    def cost(self) -> Cost:
        return "observes"

    @property
    def needs_calibration(self) -> bool:
        return False

    @property
    def initial(self) -> Initial:
        return HALF

    def variants(self) -> Iterator[tuple[str, Self]]:
        for levels, sizes in ((8, 3), (16, 4), (32, 5), (64, 6)):
            if (levels, sizes) != (self.levels, self.sizes):
                yield f"{levels} levels, {sizes} sizes", replace(self, levels=levels, sizes=sizes)

    def activation(self, site: Site) -> nn.Module:
        return site.activation if isinstance(site.activation, Smooth) else super().activation(site)

    def observe(self, site: Site) -> Observer | None:
        return None if self._own(site) else Histogram(self.per_channel, self._function(site) not in UNSIGNED)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        function = self._function(site)
        own = self._own(site)
        parameter = None if own or site.bound is None else torch.tensor(site.bound, dtype=torch.float64)
        if isinstance(site.activation, Smooth):
            parameter = site.activation.parameter
        grid = own or Grid(self._quantum(site, observer), self.levels)
        return SigmaDelta(
            grid.quantum,
            grid.levels,
            signed=function not in UNSIGNED,
            sizes=None if self.sizes == "any" else min(self.sizes, grid.levels.bit_length()),
            function=function,
            parameter=parameter,
        )

    @staticmethod
    def _own(site: Site) -> Grid | None:
        return site.activation.grid if isinstance(site.activation, Activation) else None

    def _quantum(self, site: Site, observer: Observer | None) -> Tensor:
        if observer is None:
            if site.bound is None:
                raise ValueError(
                    f"sigma-delta: site {site.name!r} has no bound to divide into levels: pass calibration=, "
                    "a few hundred training inputs"
                )
            return torch.tensor(site.bound / self.levels, dtype=torch.float64)
        assert isinstance(observer, Histogram)
        quantum = observer.find_quantum(self.levels)
        if not quantum.any():
            raise ValueError(
                f"sigma-delta: site {site.name!r} was 0 on all calibration data, so no quantum can be found: "
                "pass other inputs, or check the weights before it"
            )
        # Other inputs may activate the channels that were silent here.
        return torch.where(quantum > 0, quantum, quantum[quantum > 0].median())

    @staticmethod
    def _function(site: Site) -> str:
        return site.activation.name if isinstance(site.activation, Smooth) else "relu"
