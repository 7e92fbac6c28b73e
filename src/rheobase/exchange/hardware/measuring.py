"""Measure the largest numbers that occur while a network runs.

Shape letters: T steps, B batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from rheobase.exchange.hardware.cores import CoreLayer
from rheobase.exchange.nir.grid import Grid
from rheobase.network import SNN
from rheobase.simulation import Simulator, still_currents, watch_sites


@dataclass(frozen=True)
class Numbers:
    """The largest integers that a quantised network needs on data.

    Attributes:
        currents: For each layer that reads the analog input its largest current.
        membranes: For each site its largest membrane.
    """

    currents: dict[str, int]
    membranes: dict[str, int]


def measure(snn: SNN, grid: Grid, layers: list[CoreLayer], batches: list[Tensor], steps: int) -> Numbers:
    """The largest numbers on the data, in units of the grid of each layer."""
    currents = largest_currents(snn, batches, [layer.name for layer in layers if layer.analog])
    membranes = largest_membranes(snn, batches, steps)
    return Numbers(
        {name: round(value * 2.0 ** grid.currents[name]) for name, value in currents.items()},
        {site: round(value * 2.0 ** grid.currents[site]) for site, value in membranes.items()},
    )


def largest_currents(snn: SNN, batches: Iterable[Tensor], layers: Iterable[str]) -> dict[str, float]:
    """The largest |current| of layers whose result is the same at every step."""
    largest, steps = dict.fromkeys(layers, 0.0), snn.delay + 1
    for x in batches:
        for name in largest:
            current = Simulator(snn, x, steps, read=name, at=[steps]).run(x).logits[0]
            largest[name] = max(largest[name], current.abs().max().item())
    return largest


def largest_membranes(snn: SNN, batches: Iterable[Tensor], steps: int) -> dict[str, float]:
    """The largest |membrane| of every site, also before resets; thresholds must be one."""
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
        """Take a chunk of the spikes of a site, or of the signal that is its current."""
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
        largest = max(after_TB.abs().max().item(), (after_TB + spikes_TB).abs().max().item())
        self.largest[name] = max(self.largest[name], largest)
