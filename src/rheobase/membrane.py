"""How a membrane starts. Any of these goes with any method.

The paper proves that half the threshold makes the expected conversion error zero (Bu et al., AAAI 2022).
Random starts are drawn for each neuron and sample from (seed, site, sample), so that neither the batch size
nor the order of batches changes a result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class Initial(ABC):
    """The potential of every neuron before the first step."""

    @abstractmethod
    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """Potentials of `shape` (B, ...), or broadcastable to it.

        Args:
            threshold: Broadcastable to one sample of `shape`.
            shape: The membrane's shape, batch first.
            site: The site's number in the network.
            first_sample: The number of the batch's first sample in its dataset.
        """


@dataclass(frozen=True)
class Constant(Initial):
    """v(0) = fraction · θ for every neuron."""

    fraction: float

    def __str__(self) -> str:
        return {0.0: "zero", 0.5: "half"}.get(self.fraction, f"{self.fraction:g}")

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        return threshold * self.fraction


def Zero() -> Constant:
    """v(0) = 0: the start of every method before the paper."""
    return Constant(0.0)


def Half() -> Constant:
    """v(0) = θ/2: the paper's optimal start."""
    return Constant(0.5)


@dataclass(frozen=True)
class Uniform(Initial):
    """v(0) ~ U(low·θ, high·θ), once for each neuron and sample."""

    low: float = 0.0
    high: float = 1.0
    seed: int = 0

    def __str__(self) -> str:
        return f"uniform({self.low:g}, {self.high:g})"

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        draws = _draw(torch.rand, shape, self.seed, site, first_sample).to(threshold)
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

    def __str__(self) -> str:
        return f"gaussian({self.mean:g}, {self.deviation:.3g})"

    def potential(self, threshold: Tensor, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        draws = _draw(torch.randn, shape, self.seed, site, first_sample).to(threshold)
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


NAMED: dict[str, Callable[[], Initial]] = {
    "zero": Zero,
    "half": Half,
    "uniform": Uniform,
    "gaussian": Gaussian,
}


def parse(text: str) -> Initial:
    """An initial potential from its name, or from a number: the fraction of the threshold.

    Raises:
        ValueError: If it is neither.
    """
    if text in NAMED:
        return NAMED[text]()
    try:
        return Constant(float(text))
    except ValueError:
        known = ", ".join(NAMED)
        raise ValueError(
            f"unknown initial potential {text!r}: give one of {known}, or a fraction such as 0.4"
        ) from None


def _draw(
    distribution: Callable[..., Tensor],
    shape: torch.Size,
    seed: int,
    site: int,
    first_sample: int,
) -> Tensor:
    generator = torch.Generator()
    rows = []
    for sample in range(first_sample, first_sample + shape[0]):
        # A prime stride for each axis keeps the seeds of different (seed, site, sample) apart.
        generator.manual_seed((seed * 1_000_003 + site) * 2_147_483_647 + sample)
        rows.append(distribution(shape[1:], generator=generator))
    return torch.stack(rows)
