"""What a run counts.

Shape letters: T steps of a chunk, B samples.
"""

import torch
from torch import Tensor

from rheobase.kernels import tally
from rheobase.simulation.device import DeviceTraits

Totals = tuple[Tensor, Tensor | None]
"""The events (T, B) of a node in a chunk, and the synapses that they reached if these are counted."""
Counted = tuple[Tensor, Tensor | None, Tensor | None]
"""Spikes of each sample at each step, (T, B) int32, and the synapses they reach, (T, B) int64, both to be
increased by a kernel; the synapses behind each neuron."""


class Counters:
    """What a run counts over all parts of a batch.

    Attributes:
        spikes: The spikes of each counted site at each step, (steps,).
        fan_out: The synapses behind each value of a source of spikes.
        sop: Synaptic operations at each step, (steps,).
        members: The largest number of spikes that a neuron sends at a step, where it can be several.
    """

    def __init__(
        self,
        sites: list[str],
        fan_out: dict[str, Tensor],
        steps: int,
        device: torch.device,
        members: dict[str, int],
    ) -> None:
        self.members = members
        self.table = torch.zeros(len(sites), steps, dtype=torch.int64, device=device)
        self.spikes = dict(zip(sites, self.table, strict=True))
        self.fan_out = fan_out
        self.sop = torch.zeros(steps, dtype=torch.int64, device=device)
        self._routines: dict[str, dict[str, None]] = {}

    def add(self, others: "Counters") -> None:
        """Add what was counted in other parts of the batch."""
        self.table += others.table
        self.sop += others.sop
        for site, routines in others._routines.items():
            self._routines.setdefault(site, {}).update(routines)

    def counts(self, name: str) -> bool:
        """Whether anything is counted of what a node sends."""
        return name in self.spikes or name in self.fan_out

    def note_routine(self, site: str, routine: str) -> None:
        """Remember that a routine computed a site."""
        self._routines.setdefault(site, {})[routine] = None

    @property
    def kernels(self) -> dict[str, str]:
        """The routines that computed each site."""
        return {site: ", ".join(names) for site, names in self._routines.items()}


class ChunkCounts:
    """What one part of a batch sends in one chunk of steps.

    Most of it is added to the counters at the end of the chunk, all at once: for few neurons that is most of
    the work, and only then it is known which samples left in the chunk.

    Attributes:
        events: In the sum code the events of each node.
        kept: The signals that are counted at the end of the chunk, because samples may leave in it.
    """

    def __init__(self, counters: Counters, before: int, T: int, B: int, *, leaving: bool) -> None:
        """Begin a chunk.

        Args:
            counters: What the counts are added to.
            before: The steps before the chunk.
            T: Its steps.
            B: The samples that take part in it.
            leaving: Whether samples may leave in the chunk.
        """
        self.counters, self.shape, self.leaving = counters, (T, B), leaving
        self.steps = slice(before, before + T)
        self.events: dict[str, Totals] = {}
        self.kept: list[tuple[str, Tensor, bool]] = []
        self._totals_STB: Tensor | None = None
        self._reached_TB: Tensor | None = None
        self._counted: set[str] = set()

    def rows(self, name: str, traits: DeviceTraits, scanned: int | None = None) -> Counted | None:
        """Where the kernel of a site counts its spikes; None if `see` does.

        Args:
            name: The site.
            traits: What the kernels of the device can count.
            scanned: The number of neurons, if the kernel is a scan. It counts where kernels count synapses
                too and no sample leaves; over few neurons it would wait for its counting at every step.
        """
        counters, device, fan_out = self.counters, self.counters.table.device, self.counters.fan_out.get(name)
        able = traits.kernels_reach or fan_out is None
        if scanned is not None:
            able = traits.kernels_reach and not self.leaving and scanned > traits.few_neurons
        if name not in counters.spikes or not able:
            return None
        if self._totals_STB is None:
            shape = (len(counters.table), *self.shape)
            self._totals_STB = torch.zeros(shape, dtype=torch.int32, device=device)
        if fan_out is not None and self._reached_TB is None:
            self._reached_TB = torch.zeros(self.shape, dtype=torch.int64, device=device)
        self._counted.add(name)
        site = list(counters.spikes).index(name)
        return self._totals_STB[site], None if fan_out is None else self._reached_TB, fan_out

    def see(self, name: str, signal_TB: Tensor, binary: bool) -> None:
        """Count a signal, unless a kernel has done so or nothing is counted of it."""
        if name in self._counted or not self.counters.counts(name):
            return
        if self.leaving:
            self.kept.append((name, signal_TB, binary))
        else:
            self._tally(name, signal_TB, binary)

    def close(self, present_TB: Tensor | None = None) -> None:
        """Add what is left, for the samples that were present at each step; None for all."""
        everyone = present_TB is None or not self.kept or bool(present_TB.all())
        for name, signal_TB, binary in self.kept:
            if not everyone:
                assert present_TB is not None
                here_TB = present_TB.view(*self.shape, *[1] * (signal_TB.dim() - 2)).to(signal_TB.dtype)
                signal_TB = signal_TB * here_TB
            self._tally(name, signal_TB, binary)
        self.kept.clear()
        spikes_STB, reached = self._totals_STB, [] if self._reached_TB is None else [self._reached_TB]
        if self.events:
            none_TB = torch.zeros_like(next(iter(self.events.values()))[0])
            if self.counters.spikes:
                found = (self.events.get(site, (none_TB, None))[0] for site in self.counters.spikes)
                spikes_STB = torch.stack([*found])
            reached += [reached_TB for _, reached_TB in self.events.values() if reached_TB is not None]
        if spikes_STB is not None:
            self.counters.table[:, self.steps] += _add_up(spikes_STB, present_TB)
        if reached:
            self.counters.sop[self.steps] += _add_up(torch.stack(reached), present_TB).sum(0)
        self.events.clear()
        self._totals_STB = self._reached_TB = None

    def _tally(self, name: str, signal_TB: Tensor, binary: bool) -> None:
        spikes, fan_out = self.counters.spikes.get(name), self.counters.fan_out.get(name)
        for n in range(1, self.counters.members.get(name, 1) + 1):
            tally(
                signal_TB if n == 1 else (signal_TB >= n).to(signal_TB.dtype),
                fan_out,
                binary=binary,
                spikes=None if spikes is None else spikes[self.steps],
                reached=None if fan_out is None else self.counters.sop[self.steps],
            )


def _add_up(totals_STB: Tensor, present_TB: Tensor | None) -> Tensor:
    return (totals_STB if present_TB is None else totals_STB * present_TB).sum(2)
