"""How a membrane starts. Any of these goes with any method.

The paper proves that half the threshold makes the expected conversion error zero (Bu et al., AAAI 2022).
Random starts are drawn for each neuron and sample from (seed, site, sample, neuron), so that neither the
batch size nor the order of batches changes a result, and a device changes at most the last bit of a normal
number.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from rheobase.network.random_bits import draw_bits, name_place
from rheobase.network.settings import SEED, Kind, number, one_of, tensor

# Numbers drawn at a time: what they are made of takes eight bytes and more for each.
_AT_ONCE = 1 << 20


class Initial(ABC):
    """The potential of every neuron before the first step."""

    def restart(self, start: "Initial") -> "Initial":
        """The same with another start at its bottom: by default that start itself."""
        return start

    @abstractmethod
    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """Potentials of `shape` (B, ...), or broadcastable to it.

        Args:
            threshold: Broadcastable to one sample of `shape`.
            shape: The membrane's shape, batch first.
            site: The site's number in the network.
            first_sample: The number of the batch's first sample in its dataset.
        """


def _check_fractions(start: "Initial", *names: str) -> None:
    for name in names:
        value = getattr(start, name)
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(
                f"the {name} of a start is a finite number, in units of the threshold; got {value!r}"
            )


def _check_seed(seed: int) -> None:
    if not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"a seed is a whole number of at least 0 and below 2^63, got {seed!r}")


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
"""v(0) = 0: the start of every method before the paper."""

HALF = Constant(0.5)
"""v(0) = θ/2: the paper's optimal start."""


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

    The paper does not give its parameters. The default has the mean and variance of U(0, θ);
    `Gaussian(0, 1)` is the other natural reading.
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
    """v(0) given as a tensor: one number, one per channel, or one per neuron, in units of the current."""

    values: Tensor

    def __str__(self) -> str:
        return "given"

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        values = self.values.to(threshold)
        return values.view(-1, *[1] * (len(shape) - 2)) if values.dim() == 1 else values


@dataclass(frozen=True, eq=False)
class Corrected(Initial):
    """Another start and a correction on top of it, given as a tensor like that of `Potential`."""

    start: Initial
    values: Tensor

    def __str__(self) -> str:
        return f"{self.start}, corrected by {self.values.double().mean().item():.4g}"

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

    Layer by layer, with earlier ones fixed and later ones at zero, at a given number of steps. "absolute" and
    "squared" look for the smallest mean |φ − a| or (φ − a)² between the mean output φ of the site and the
    activation a of the ordinary network; "agreement" for the most inputs that both networks decide alike. No
    labels are used; of equals the smallest fraction wins.

    S. Hwang et al., "Low-latency spiking neural networks using pre-charged membrane potential and delayed
    evaluation", Frontiers in Neuroscience 2021. That the search is layer-wise is known of it; grid and
    objective are this package's reading.
    """

    steps: int
    """How many steps the network shall run."""
    grid: tuple[float, ...] = tuple(i / 20 for i in range(20))
    objective: Objective = "absolute"

    def __post_init__(self) -> None:
        if not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps must be a whole number of at least 1, got {self.steps!r}")
        if not self.grid:
            raise ValueError("the grid of starts is empty: give fractions of the threshold, as (0.0, 0.5)")
        if self.objective not in get_args(Objective):
            known = ", ".join(get_args(Objective))
            raise ValueError(f"unknown objective {self.objective!r}: give one of {known}")

    def __str__(self) -> str:
        return f"searched({self.steps})"


Start: TypeAlias = Initial | Searched
"""What `convert` takes: how membranes start, or a request to search for it."""

NAMED: dict[str, Initial] = {"zero": ZERO, "half": HALF, "uniform": Uniform(), "gaussian": Gaussian()}


def parse_start(start: Start | str | float) -> Start:
    """A start as it is, from its name, from searched:STEPS, or from a number: the fraction of the threshold.

    Raises:
        ValueError: If it is a text, and none of these.
        TypeError: If it is something else.
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
    """Numbers of `shape` (B, ...), made by a distribution of whole ones of 53 bits, where `like` is."""
    sample_B = torch.arange(first_sample, first_sample + shape[0], device=like.device)
    # Sites count down from −1: a coding with the same seed names its places by numbers from 0 on.
    place_B = name_place(seed, -1 - site, sample_B, device=like.device)
    drawn = like.new_empty(shape)
    count = shape[1:].numel()
    some = max(1, _AT_ONCE // max(1, count))
    parts = zip(torch.split(drawn.view(shape[0], count), some), torch.split(place_B, some), strict=True)
    for rows, places in parts:
        rows.copy_(distribution(draw_bits(places, count, 53).double()))
    return drawn


def _uniform(whole: Tensor) -> Tensor:
    return (whole * 2**-29).floor() * 2**-24  # as many bits as single precision holds, so that none becomes 1


def _normal(whole: Tensor) -> Tensor:
    drawn: Tensor = torch.special.ndtri((whole + 0.5) * 2**-53)
    return drawn
