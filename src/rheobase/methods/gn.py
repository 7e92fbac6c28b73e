"""Group neurons: a population of binary neurons for each activation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import torch

from rheobase.methods.composition import Correction
from rheobase.network import Group, Neuron, Site


@dataclass(frozen=True)
class GroupNeurons(Correction):
    """m binary neurons share a membrane and send it in one step, rounded down to a multiple of θ/m.

    L. Lv, W. Fang, L. Yuan and Y. Tian, "Optimal ANN-SNN conversion with group neurons", ICASSP 2024.

    Member i fires at u ≥ i·θ/m and each spike subtracts θ/m from the membrane of all; v(0) = θ/(2·m). After
    one step with m = L members, a network of `qcfs` has computed its quantised activations exactly; more
    steps refine them. It costs m times the neurons and m lines, and its latency is T.

    Readings: members compare with the rest of the membrane one after the other, which is the same rule; as
    hardware has it, a spike inhibits all members.
    """

    name = "gn"
    changes = "members"

    members: int = 4
    """m."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_integer("members", 2, 255)

    def variants(self) -> Iterator[tuple[str, Self]]:
        for members in (2, 4, 8):
            if members != self.members:
                yield f"{members} members", replace(self, members=members)

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        group = Group.of(neuron)
        if group.members > 1:
            raise ValueError("its neurons have members already, and its thresholds suit these")
        group.sizes = group.threshold.new_full((self.members,), 1 / self.members, dtype=torch.float64)
        return group
