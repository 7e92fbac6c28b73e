"""Starts: the initial potential of membranes. Any start works with any method.

Half the threshold makes the expected conversion error zero (Bu et al., AAAI 2022). Random starts are drawn
for each neuron and sample from (seed, site, sample, neuron), so that neither the batch size nor the order of
batches changes a result; another device changes at most the last bit of a normal number.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from rheobase.kernels import widen
from rheobase.network.operations import along_channels
from rheobase.network.random_bits import draw_bits, name_place
from rheobase.network.settings import SEED, Kind, number, one_of, tensor

# Numbers drawn at a time; each takes at least eight bytes of scratch memory.
_AT_ONCE = 1 << 20


class Initial(ABC):
    """The potential of every neuron before the first step."""

    def restart(self, start: "Initial") -> "Initial":
        """The same with another start below any correction: by default that start itself."""
        return start

    @abstractmethod
    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """Potentials of `shape` (B, ...), or broadcastable to it.

        Args:
            threshold: Broadcastable to one sample of `shape`.
            shape: The membrane's shape, batch first.
            site: The index of the site in the network.
            first_sample: The index of the batch's first sample in its dataset.
        """


def _check_fractions(start: "Initial", *names: str) -> None:
    for name in names:
        value = getattr(start, name)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(
                f"the {name} of a start must be a finite number, in units of the threshold; got {value!r}"
            )


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"a seed must be an integer in 0 … 2^63 − 1, got {seed!r}")


@dataclass(frozen=True)
class Constant(Initial):
    """v(0) = fraction · θ for every neuron."""

    fraction: float

    def __post_init__(self) -> None:
        _check_fractions(self, "fraction")

    def __str__(self) -> str:
        return {0.0: "zero", 0.5: "half"}.get(self.fraction, f"{self.fraction:g}")

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        return threshold * self.fraction


ZERO = Constant(0.0)
"""v(0) = 0."""

HALF = Constant(0.5)
"""v(0) = θ/2, the optimal start."""


@dataclass(frozen=True)
class Uniform(Initial):
    """v(0) ~ U(low·θ, high·θ), once for each neuron and sample."""

    low: float = 0.0
    high: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fractions(self, "low", "high")
        _check_seed(self.seed)

    def __str__(self) -> str:
        return f"uniform({self.low:g}, {self.high:g})"

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        draws = _draw(_uniform, threshold, shape, self.seed, site, first_sample)
        return threshold * (self.low + (self.high - self.low) * draws)


@dataclass(frozen=True)
class Gaussian(Initial):
    """v(0) ~ N(mean·θ, (deviation·θ)²), once for each neuron and sample.

    Bu et al. (AAAI 2022) compare such starts, but do not give the parameters. The default has the mean and
    variance of U(0, θ); `Gaussian(0, 1)` is the other natural reading.
    """

    mean: float = 0.5
    deviation: float = 12**-0.5
    seed: int = 0

    def __post_init__(self) -> None:
        _check_fractions(self, "mean", "deviation")
        _check_seed(self.seed)

    def __str__(self) -> str:
        return f"gaussian({self.mean:g}, {self.deviation:.3g})"

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        draws = _draw(_normal, threshold, shape, self.seed, site, first_sample)
        return threshold * (self.mean + self.deviation * draws)


@dataclass(frozen=True, eq=False)
class Potential(Initial):
    """v(0) as a tensor: one number, one per channel, or one per neuron, in units of the current."""

    values: Tensor

    def __str__(self) -> str:
        return "given"

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        return along_channels(self.values.to(threshold), len(shape))


@dataclass(frozen=True, eq=False)
class Corrected(Initial):
    """Another start plus a correction, which is a tensor like that of `Potential`."""

    start: Initial
    values: Tensor

    def __str__(self) -> str:
        return f"{self.start}, corrected by {widen(self.values).mean().item():.4g}"

    def restart(self, start: Initial) -> Initial:
        return replace(self, start=self.start.restart(start))

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        base = self.start.potential(threshold, shape, site, first_sample)
        return base + Potential(self.values).potential(threshold, shape, site, first_sample)


STARTS: dict[type, Kind] = {
    Constant: Kind({"fraction": number}),
    Uniform: Kind({"low": number, "high": number, "seed": SEED}),
    Gaussian: Kind({"mean": number, "deviation": number, "seed": SEED}),
    Potential: Kind({"values": tensor}),
}
"""Those that a file can name."""
STARTS[Corrected] = Kind({"start": one_of(STARTS), "values": tensor})

Objective = Literal["absolute", "squared", "agreement"]


@dataclass(frozen=True)
class Searched:
    """A request to `convert`: search v(0) = fraction · θ for each site, on the calibration data.

    The search goes layer by layer, with the layers before fixed and those after at zero, for a given number
    of steps. "absolute" and "squared" minimise the mean |φ − a| or (φ − a)² between the mean output φ of the
    site and the activation a of the ANN; "agreement" maximises the number of inputs that both networks
    classify alike. No labels are used. Among equals the smallest fraction wins.

    S. Hwang et al., "Low-latency spiking neural networks using pre-charged membrane potential and delayed
    evaluation", Frontiers in Neuroscience 2021. The paper searches layer by layer; grid and objective are
    this package's choice.
    """

    steps: int
    """The number of steps of the runs to search for."""
    grid: tuple[float, ...] = tuple(i / 20 for i in range(20))
    objective: Objective = "absolute"

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be an integer of at least 1, got {self.steps!r}")
        if not self.grid:
            raise ValueError(
                "the grid of starts is empty: give fractions of the threshold, such as (0.0, 0.5)"
            )
        if self.objective not in get_args(Objective):
            known = ", ".join(get_args(Objective))
            raise ValueError(f"unknown objective {self.objective!r}: give one of {known}")

    def __str__(self) -> str:
        return f"searched({self.steps})"


Start: TypeAlias = Initial | Searched
"""What `convert` takes: how membranes start, or a request to search for it."""

NAMED: dict[str, Initial] = {"zero": ZERO, "half": HALF, "uniform": Uniform(), "gaussian": Gaussian()}


def parse_start(start: Start | str | float) -> Start:
    """A start, or what a name, "searched:STEPS" or a fraction of the threshold stands for.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is none of these.
    """
    if isinstance(start, (Initial, Searched)):
        return start
    if isinstance(start, (int, float)) and not isinstance(start, bool):
        return Constant(start)
    known = f"{', '.join(NAMED)}, searched:8 for runs of 8 steps, or a fraction such as 0.4"
    if not isinstance(start, str):
        raise TypeError(
            "expected an initial potential such as rheobase.HALF, rheobase.Constant(0.4) or "
            f"rheobase.Uniform(), or one of {known}; got {start!r}"
        )
    if start in NAMED:
        return NAMED[start]
    name, _, number = start.partition(":")
    if name == "searched" and number.isdecimal():
        return Searched(int(number))
    try:
        fraction = float(start)
    except ValueError:
        raise ValueError(f"unknown initial potential {start!r}: give one of {known}") from None
    return Constant(fraction)


def _draw(
    distribution: Callable[[Tensor], Tensor],
    like: Tensor,
    shape: torch.Size,
    seed: int,
    site: int,
    first_sample: int,
) -> Tensor:
    """Numbers of `shape` (B, ...), made from integers of 53 bits by a distribution."""
    sample_B = torch.arange(first_sample, first_sample + shape[0], device=like.device)
    # Sites count down from −1, because a coding with the same seed uses the numbers from 0 on.
    place_B = name_place(seed, -1 - site, sample_B, device=like.device)
    drawn = like.new_empty(shape)
    count = shape[1:].numel()
    some = max(1, _AT_ONCE // max(1, count))
    parts = zip(torch.split(drawn.view(shape[0], count), some), torch.split(place_B, some), strict=True)
    for rows, places in parts:
        rows.copy_(distribution(widen(draw_bits(places, count, 53))))
    return drawn


def _uniform(bits: Tensor) -> Tensor:
    return (bits * 2**-29).floor() * 2**-24  # no more bits than single precision has, so that none becomes 1


def _normal(bits: Tensor) -> Tensor:
    drawn: Tensor = torch.special.ndtri((bits + 0.5) * 2**-53)
    return drawn
