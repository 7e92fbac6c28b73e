"""The largest numbers that occur while a network runs."""

from collections.abc import Iterable

import torch
from torch import Tensor

from rheobase.simulation import simulate
from rheobase.snn import SNN


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
        meter = _Meter(snn, x, first)
        watch = [*dict.fromkeys([snn.source(site) for site in snn.sites] + snn.sites)]
        simulate(snn, x, steps, at=[steps], first_sample=first, probe=meter.see, watch=watch)
        largest = {site: max(largest[site], meter.largest[site]) for site in snn.sites}
        first += len(x)
    return largest


class _Meter:
    """Follows the membranes of one run: v(0) + currents − spikes."""

    def __init__(self, snn: SNN, x: Tensor, first: int) -> None:
        self.snn, self.x, self.first = snn, x, first
        self.sources = {snn.source(site): site for site in snn.sites}
        self.largest = dict.fromkeys(snn.sites, 0.0)
        self.currents: dict[str, Tensor] = {}
        self.rests: dict[str, Tensor] = {}

    def see(self, name: str, signal: Tensor, before: int) -> None:
        if name in self.sources:
            self.currents[name] = signal.double()
        if name not in self.largest:
            return
        spikes = signal.double()
        current = self._current(self.snn.source(name), spikes)
        number = self.snn.sites.index(name)
        rest = self.rests.get(name)
        if rest is None:
            rest = self.snn.neuron(name).start(signal.shape[1:], number, self.first).double()
        after = rest + (current - spikes).cumsum(0)
        self.rests[name] = after[-1]
        self.largest[name] = max(
            self.largest[name], after.abs().max().item(), (after + spikes).abs().max().item()
        )

    def _current(self, source: str, spikes: Tensor) -> Tensor:
        if source not in self.currents:  # the same at every step, so it is computed once and not shown
            still = simulate(self.snn, self.x, 1, read=source, at=[1]).logits[0]
            self.currents[source] = still.double()[None]
        current = self.currents[source]
        return current if len(current) == len(spikes) else torch.broadcast_to(current, spikes.shape)
