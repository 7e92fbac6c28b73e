"""What a run counts."""

import torch
from torch import Tensor

from rheobase.kernels import tally


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
        self.spikes = {site: torch.zeros(steps, dtype=torch.int64, device=device) for site in sites}
        self.fan_out = fan_out
        self.sop = torch.zeros(steps, dtype=torch.float64, device=device)
        self._routines: dict[str, dict[str, None]] = {}

    def counts(self, name: str) -> bool:
        """Whether anything is counted of what a node sends."""
        return name in self.spikes or name in self.fan_out

    def add_spikes(self, name: str, spikes_TB: Tensor, before: int, binary: bool) -> None:
        """Add the spikes (T, B, ...) that a node sent after some steps, and the operations they caused."""
        self._add(name, before, *tally(spikes_TB, self.fan_out.get(name), binary=binary))

    def add_totals(self, name: str, totals_TB: Tensor, reached_TB: Tensor | None, before: int) -> None:
        """Add the number of spikes (T, B) of each sample, and of the synapses they reached."""
        self._add(name, before, totals_TB.sum(1), None if reached_TB is None else reached_TB.sum(1))

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
