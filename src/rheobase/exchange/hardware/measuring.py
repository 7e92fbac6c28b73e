"""The largest numbers that occur while a network runs.

Shape letters: T steps, B batch.
"""

from collections.abc import Iterable

from torch import Tensor

from rheobase.network import SNN
from rheobase.simulation import simulate, still_currents, watch_sites


def largest_currents(snn: SNN, batches: Iterable[Tensor], layers: Iterable[str]) -> dict[str, float]:
    """The largest |current| of layers that compute the same at every step."""
    largest = dict.fromkeys(layers, 0.0)
    for x in batches:
        for name in largest:
            current = simulate(snn, x, 1, read=name, at=[1]).logits[0]
            largest[name] = max(largest[name], current.abs().max().item())
    return largest


def largest_membranes(snn: SNN, batches: Iterable[Tensor], steps: int) -> dict[str, float]:
    """The largest |membrane| of every site, before resets too; thresholds are one."""
    largest = dict.fromkeys(snn.sites, 0.0)
    first = 0
    for x in batches:
        meter = _Meter(snn, still_currents(snn, x, steps, first), first)
        watch_sites(snn, x, steps, first, meter.see)
        largest = {site: max(largest[site], meter.largest[site]) for site in snn.sites}
        first += len(x)
    return largest


class _Meter:
    """Follows the membranes of one run: v(0) + currents − spikes."""

    def __init__(self, snn: SNN, still: dict[str, Tensor], first: int) -> None:
        self.snn, self.still, self.first = snn, still, first
        self.sources = {site: snn.source(site) for site in snn.sites}
        self.largest = dict.fromkeys(snn.sites, 0.0)
        self.currents: dict[str, Tensor] = {}
        self.rests: dict[str, Tensor] = {}

    def see(self, name: str, signal_TB: Tensor, before: int, rows: slice) -> None:
        """Take in a chunk of a site's spikes, or of what is a site's current."""
        if name not in self.largest:
            self.currents[name] = signal_TB.double()
            return
        spikes_TB, source = signal_TB.double(), self.sources[name]
        current = self.currents[source] if source in self.currents else self.still[source][rows]
        if before == 0:
            number, first = self.snn.sites.index(name), self.first + rows.start
            self.rests[name] = self.snn.neuron(name).start(signal_TB.shape[1:], number, first).double()
        after_TB = self.rests[name] + (current - spikes_TB).cumsum(0)
        self.rests[name] = after_TB[-1]
        self.largest[name] = max(
            self.largest[name], after_TB.abs().max().item(), (after_TB + spikes_TB).abs().max().item()
        )
