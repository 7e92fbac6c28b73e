"""Sigma-delta conversion: the sum code."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from rheobase.io import find_name
from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.histograms import Histogram
from rheobase.network import (
    FINEST,
    HALF,
    UNSIGNED,
    Activation,
    Grid,
    Neuron,
    Quantised,
    Rectifier,
    SigmaDelta,
    Site,
    Smooth,
    channels_of,
    find_node,
)


@dataclass(frozen=True)
class SumCode(Method):
    """Neurons send the changes of their activation, rounded to multiples of a quantum, until nothing changes.

    A value is the sum of what was sent, not a mean. Input and biases enter once, events are ±2^k, and a
    neuron can take back what it sent. When nothing fires any more, every site holds its activation rounded to
    the nearest of its levels, for any order and timing of the events: the network has computed the
    quantised ANN, `snn.limit`, exactly. No training is needed, and many activations other than ReLU convert.

    The rule for ReLU is that of K. You et al., "SpikeZIP-TF: Conversion is All You Need for Transformer-based
    SNN", ICML 2024, with events of several sizes; sums instead of rates as in sigma-delta networks.

    A site that is quantised already, as `qcfs` trains it or as fake quantisation leaves it, keeps its own
    quantum and levels, with or without data: `snn.limit` is then the quantised network. The quantum of any
    other site is given as `quanta`, or chosen on calibration data by least squared error, and wider for a
    channel that was rarely active there; or it is θ over the levels for activations with a bound θ (trained
    clips, ReLU6, sigmoid) if there is no data.
    """

    name = "sigma-delta"
    code = "sum"
    cost = "observes"
    needs_calibration = False
    initial = HALF
    handles = (
        "linear",
        "silu",
        "sigmoid",
        "tanh",
        "gelu",
        "hard-sigmoid",
        "hard-swish",
        "leaky-relu",
        "elu",
        "layer-norm",
        "rms-norm",
        "group-norm",
        "softmax",
        "attention",
        "analog",
    )

    levels: int = 32
    """L: the largest count of a neuron; signed sites count from −L to L. Quantised sites have their own."""
    sizes: int | Literal["any"] = 5
    """The number of sizes of an event: 1 sends ±1 only, 3 sends ±1, ±2 and ±4; "any" sends the whole
    difference at once, a graded spike."""
    per_channel: bool = True
    """One quantum for each channel instead of one for the layer. Without data there is one for the layer."""

    encoders: bool | None = None
    """Whether a neuron encodes the input of every layer with weights that is not events already, and both
    operands of a product of two signals. None: in networks with normalisation, softmax or such products."""
    quanta: Mapping[str, Any] | tuple[tuple[str, tuple[float, ...]], ...] = ()
    """The quanta of some sites by their names, if they are known: numbers, or one for each channel. These
    sites have `levels` levels, also where they are quantised already."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "quanta", tuple(_read_quantum(*pair) for pair in dict(self.quanta).items()))
        whole = isinstance(self.levels, int) and not isinstance(self.levels, bool)
        if not whole or not 2 <= self.levels <= FINEST:
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
    def encodes(self) -> bool | None:
        return self.encoders

    def variants(self) -> Iterator[tuple[str, Self]]:
        for levels, sizes in ((8, 3), (16, 4), (32, 5), (64, 6)):
            if (levels, sizes) != (self.levels, self.sizes):
                yield f"{levels} levels, {sizes} sizes", replace(self, levels=levels, sizes=sizes)

    def activation(self, site: Site) -> nn.Module:
        keeps = isinstance(site.activation, Smooth) or self._own(site) is not None
        return site.activation if keeps else super().activation(site)

    def observe(self, site: Site) -> Observer | None:
        if self._own(site) or site.name in dict(self.quanta):
            return None
        channels = site.channels if self.per_channel and site.layout else None
        return _Range(channels, self._function(site) not in UNSIGNED)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        function, inner, grid = self._function(site), self._inner(site), self._own(site)
        if isinstance(inner, Smooth):
            parameter = inner.parameter
        else:
            bound = inner.bound if isinstance(inner, Rectifier) else None if grid else site.bound
            parameter = None if bound is None else torch.tensor(bound, dtype=torch.float64, device="cpu")
        if grid is None:
            levels, quantum = self.levels, self._quantum(site, observer)
        else:
            levels, quantum = grid.levels, grid.quantum
            if function == "linear" and -grid.low != grid.high:
                # Counts are symmetric, so f clips the shorter side.
                parameter = min(grid.low, grid.high, key=abs) * quantum
        return SigmaDelta(
            quantum,
            levels,
            signed=function not in UNSIGNED,
            sizes=None if self.sizes == "any" else min(self.sizes, levels.bit_length()),
            function=function,
            parameter=parameter,
        )

    def _own(self, site: Site) -> Grid | None:
        """The values that the site is rounded to in the ANN, unless its quantum is given."""
        given = site.name in dict(self.quanta)
        return site.activation.grid if isinstance(site.activation, Activation) and not given else None

    def finish(self, conversion: Conversion) -> None:
        sites = {site.name: site for site in conversion.ann.sites}
        for name, quantum in dict(self.quanta).items():
            find_name("site", name, dict.fromkeys(conversion.snn.sites), of="sigma-delta's quanta")
            node = find_node(conversion.ann.module.graph, name)
            shape, place = node.meta.get("shape", ()), sites[name].channels
            known = shape[place] if place < len(shape) else None
            channels = known or channels_of(conversion.snn.module, node.all_input_nodes[0])
            if len(quantum) > 1 and channels not in (None, len(quantum)):
                raise ValueError(
                    f"sigma-delta: site {name!r} has {channels} channels, but {len(quantum)} quanta were "
                    "given: pass one number, or one for each channel"
                )

    def _quantum(self, site: Site, observer: Observer | None) -> Tensor:
        if given := dict(self.quanta).get(site.name):
            quantum = torch.tensor(given, dtype=torch.float64, device="cpu")
            return quantum[0] if len(given) == 1 else quantum.reshape(site.layout)
        if observer is None:
            if site.bound is None:
                raise ValueError(
                    f"sigma-delta: site {site.name!r} has no bound to divide into levels: pass calibration=, "
                    "a few hundred training inputs"
                )
            return torch.tensor(site.bound / self.levels, dtype=torch.float64, device="cpu")
        assert isinstance(observer, _Range)
        quantum = observer.find_quantum(self.levels)
        if observer.constant or not quantum.any():
            low, high = observer.low.min().item(), observer.high.max().item()
            value = f"was {high:g}" if low == high else f"had one value per channel, {low:g} to {high:g},"
            raise ValueError(
                f"sigma-delta: site {site.name!r} {value} on all calibration data, so no quantum can be "
                "found: pass inputs that differ, check the weights before it, or give its quantum as "
                f"quanta={{{site.name!r}: …}}"
            )
        quantum = observer.widen(quantum)
        return quantum.reshape(site.layout) if quantum.dim() else quantum

    @staticmethod
    def _inner(site: Site) -> nn.Module:
        return site.activation.inner if isinstance(site.activation, Quantised) else site.activation

    def _function(self, site: Site) -> str:
        inner = self._inner(site)
        return inner.name if isinstance(inner, Smooth) else "relu"


class _Range(Histogram):
    """A histogram that also knows the smallest and the largest value of each channel."""

    def __init__(self, channels: int | None = 1, signed: bool = False) -> None:
        super().__init__(channels, signed)
        self.seen, self.low, self.high = (
            0,
            torch.tensor(torch.inf, device="cpu"),
            torch.tensor(-torch.inf, device="cpu"),
        )

    def update(self, a: Tensor) -> None:
        super().update(a)
        others = [d for d in range(a.dim()) if d != (self.channels or 1)]
        self.seen += math.prod(a.shape[d] for d in others)
        self.low = a.amin(others).minimum(self.low.to(a))
        self.high = a.amax(others).maximum(self.high.to(a))

    def widen(self, quantum: Tensor) -> Tensor:
        """Quanta that also serve inputs that activate a channel more than these did.

        A channel that was rarely active showed a small part of its range, and other inputs would be clipped.
        Below the median m of the layer, a channel that was active at a share p of all places gets s^p·m^(1−p)
        instead of s: the median itself if it was silent, and s as it is if it was always active.
        """
        s, share = quantum.double(), self.counts.sum((1, 2)).double().reshape(quantum.shape) / self.seen
        median = s[s > 0].median()
        return torch.where(s < median, s**share * median ** (1 - share), s).to(quantum)

    @property
    def constant(self) -> bool:
        """Whether no channel changed between inputs or positions by more than the finest quantum can show."""
        spread, size = self.high - self.low, self.low.abs().maximum(self.high.abs())
        return self.seen > 1 and bool((spread * FINEST <= size).all())


def _read_quantum(name: str, given: Any) -> tuple[str, tuple[float, ...]]:
    try:
        quantum = torch.as_tensor(given, dtype=torch.float64).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"sigma-delta: site {name!r} needs a number as quantum, got {given!r}") from error
    if quantum.dim() > 1 or not quantum.numel() or not (quantum.isfinite() & (quantum > 0)).all():
        raise ValueError(
            f"sigma-delta: the quantum of site {name!r} must be a number above 0, or one for each channel; "
            f"got {given!r}"
        )
    return name, tuple(quantum.flatten().tolist())
