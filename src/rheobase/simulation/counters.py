"""What a run counts."""

import torch
from torch import Tensor

from rheobase.kernels import tally

Totals = tuple[Tensor, Tensor | None]
"""The events (T, B) of a node in a chunk, and the synapses that they reached if these are counted."""


class Counters:
    """What a run counts over all parts of a batch.

    Attributes:
        spikes: The spikes of each counted site at each step, (steps,).
        fan_out: The synapses behind each value of a source of spikes.
        sop: Synaptic operations at each step, (steps,).
    """

    def __init__(
        self, sites: list[str], fan_out: dict[str, Tensor], steps: int, device: torch.device
    ) -> None:
        self._table = torch.zeros(len(sites), steps, dtype=torch.int64, device=device)
        self.spikes = dict(zip(sites, self._table, strict=True))
        self.fan_out = fan_out
        self.sop = torch.zeros(steps, dtype=torch.int64, device=device)
        self._routines: dict[str, dict[str, None]] = {}

    def counts(self, name: str) -> bool:
        """Whether anything is counted of what a node sends."""
        return name in self.spikes or name in self.fan_out

    def add_spikes(self, name: str, spikes_TB: Tensor, before: int, binary: bool) -> None:
        """Add the spikes (T, B, ...) that a node sent after some steps, and the operations they caused."""
        self._add(name, before, *tally(spikes_TB, self.fan_out.get(name), binary=binary))

    def add_totals(self, name: str, totals_TB: Tensor, before: int) -> None:
        """Add the number of spikes (T, B) of each sample after some steps."""
        self._add(name, before, totals_TB.sum(1), None)

    def add_events(self, events: dict[str, Totals], before: int, present_TB: Tensor | None = None) -> None:
        """Add the events of nodes after some steps, all at once: for few neurons that is most of the work.

        Args:
            events: For each node its events (T, B) and the synapses they reached.
            before: The steps.
            present_TB: Which samples count at which step, (T, B); None for all.
        """
        if not events:
            return

        def add_up(totals: list[Tensor]) -> Tensor:
            totals_STB = torch.stack(totals)
            return (totals_STB if present_TB is None else totals_STB * present_TB).sum(2)

        none_TB = torch.zeros_like(next(iter(events.values()))[0])
        steps = slice(before, before + len(none_TB))
        if self.spikes:
            totals = [events[site][0] if site in events else none_TB for site in self.spikes]
            self._table[:, steps] += add_up(totals)
        if reached := [reached_TB for _, reached_TB in events.values() if reached_TB is not None]:
            self.sop[steps] += add_up(reached).sum(0)

    def _add(self, name: str, before: int, spikes_T: Tensor, reached_T: Tensor | None) -> None:
        after = before + len(spikes_T)
        if name in self.spikes:
            self.spikes[name][before:after] += spikes_T
        if reached_T is not None:
            self.sop[before:after] += reached_T

    def note_routine(self, site: str, routine: str) -> None:
        """Remember that a routine computed a site."""
        self._routines.setdefault(site, {})[routine] = None

    @property
    def kernels(self) -> dict[str, str]:
        """The routines that computed each site."""
        return {site: ", ".join(names) for site, names in self._routines.items()}
