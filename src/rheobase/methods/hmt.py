"""Multi-level neurons with thresholds for normally distributed currents."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from rheobase.methods.contract import Conversion, Method, Observer
from rheobase.methods.shared.balancing import match_network, set_threshold
from rheobase.methods.shared.side_by_side import ExactSum, activations
from rheobase.network import HALF, Group, Neuron, Site, find_node

_ROUNDS = 100


@dataclass(frozen=True)
class HMT(Method):
    """n members of sizes θ, θ/2 … send the binary digits of the membrane; θ suits normal currents.

    "Generalized threshold optimization with harmony multi-threshold neurons for accurate ANN-to-SNN
    conversion" (H-MT), AAAI 2026.

    At each step, from the largest member to the smallest, a member fires if the rest of the membrane reaches
    its size, and subtracts it; v(0) is half the smallest size q. Over T steps a constant current is rounded
    to a multiple of q/T, up to (2^n − 1)·q. The threshold of a channel aims at the least squared error for
    currents with the channel's mean μ and deviation σ over the calibration data, as Z. Huang et al., ICML
    2025, have it: with P_i the probability that a normal current exceeds (i − ½)·q/T, and φ_i its density
    there times σ², the quantum of least error satisfies q/T = Σ(μ·P_i + φ_i)/Σ(2i − 1)·P_i, i = 1 … L, with
    L = (2^n − 1)·T levels; that is iterated 100 times. For means of −3·σ … 3·σ the error is then within 1 %
    of the least one with up to 16 levels, up to 1.6 times that with 60, and 50 times with 1,000.

    Readings: several members may fire in a step, as in the authors' code. Neurons for negative values are
    left out, as sites are ReLUs. The iteration starts with the largest level at max(μ, 0) + 3·σ. A site with
    a bound, such as a trained clip, is covered up to the bound at most. Statistics come from the calibration
    data, where the code takes those of the test data.

    It has n lines and n neurons for each activation, and its latency is T.
    """

    name = "hmt"
    cost = "observes"
    aims_at_steps = True
    initial = HALF

    steps: int = 4
    """T."""
    members: int = 4
    """n: the paper has 4 and 8."""

    def __post_init__(self) -> None:
        for name, most in (("steps", 4096), ("members", 8)):
            self._expect_integer(name, most=most)

    def variants(self) -> Iterator[tuple[str, Self]]:
        for members in (2, 4, 8):
            if members != self.members:
                yield f"{members} members", replace(self, members=members)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        sizes = torch.tensor([2.0**-i for i in range(self.members)], device="cpu")
        return Group(torch.ones((), device="cpu"), sizes=sizes)  # until it is measured

    def finish(self, conversion: Conversion) -> None:
        match_network(conversion)
        for site, (mean, deviation) in measure_currents(conversion).items():
            self.tune(conversion, site, mean, deviation)

    def tune(self, conversion: Conversion, site: Site, mean: Tensor, deviation: Tensor) -> None:
        """Set the thresholds of a site, given mean and deviation of the currents of its channels."""
        quantum = self.steps * best_quantum(mean, deviation, (2**self.members - 1) * self.steps)
        largest = math.inf if site.bound is None else site.bound / (2 - 2.0 ** (1 - self.members))
        theta = (quantum * 2 ** (self.members - 1)).clamp(max=largest)
        set_threshold(conversion, site, theta.to(conversion.snn.dtype))


def measure_currents(conversion: Conversion) -> dict[Site, tuple[Tensor, Tensor]]:
    """The mean and the deviation of the inputs of each site in the ANN, by channel, in double."""
    graph = conversion.ann.module.graph
    sources = {site: find_node(graph, site.name).all_input_nodes[0] for site in conversion.ann.sites}

    def see() -> Iterator[tuple[Site, Tensor]]:
        for x in conversion.calibration():
            seen = activations(conversion.ann, x, [str(node.target) for node in sources.values()])
            for site, node in sources.items():
                yield site, (x if node.op == "placeholder" else seen[str(node.target)]).double()

    largest = dict.fromkeys(sources, 0.0)  # the unit of the sums, which have a limited range
    for site, z in see():
        largest[site] = max(largest[site], z.abs().max().item())
    units = {site: unit or 1.0 for site, unit in largest.items()}
    sums = {site: (ExactSum(unit), ExactSum(unit**2)) for site, unit in units.items()}
    counts = dict.fromkeys(sources, 0)
    for site, z in see():
        for total, values in zip(sums[site], (z, z.square()), strict=True):
            total.add(values, [d for d in range(z.dim()) if d != 1])
        counts[site] += z.numel() // z.shape[1]
    found = {}
    for site, totals in sums.items():
        mean, square = (total.value / counts[site] for total in totals)
        found[site] = mean, (square - mean.square()).clamp(min=0).sqrt()
    return found


def best_quantum(mean: Tensor, deviation: Tensor, levels: int) -> Tensor:
    """The quantum for normal values that are rounded to its multiples 0 … levels.

    It approaches that of least squared error in 100 rounds, which are too few for many levels: see `HMT`.

    Args:
        mean: (C,).
        deviation: (C,).
        levels: The largest multiple.

    Returns:
        (C,), zero where values are never above zero.
    """
    edge = torch.arange(levels, dtype=torch.float64, device=mean.device) + 0.5
    mean, deviation = mean[:, None], deviation[:, None].clamp(min=1e-12)
    quantum = (mean.clamp(min=0) + 3 * deviation) / levels
    for _ in range(_ROUNDS):
        distance = (edge * quantum - mean) / deviation
        above = torch.special.ndtr(-distance)
        density = torch.exp(-distance.square() / 2) / math.sqrt(2 * math.pi)
        sent = (mean * above + deviation * density).sum(1, keepdim=True)
        quantum = torch.where(
            sent > 1e-12, sent / (2 * edge * above).sum(1, keepdim=True).clamp(min=1e-30), 0
        )
        if not quantum.any():
            break
    return quantum[:, 0]
