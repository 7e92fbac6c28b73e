"""Settle all neurons in one run of the network, instead of one run up to each of them.

A layer runs all its steps before the next layer does. So it can be measured and changed in between, and later
layers see it in its final form.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import sys
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from rheobase.methods.contract import Conversion
from rheobase.network import Neuron, Site
from rheobase.simulation import Simulator, memory_for_all_steps


class Fire(Protocol):
    """Runs the neuron of a site from its start."""

    def __call__(self, shift: Tensor | None = None) -> Tensor:
        """Return its outputs (T, B, ...), with a shift (B, ...) added to the current of every step."""


Settle = Callable[[Tensor, Fire], Tensor]
"""Sees the current (T, B, ...) of a site, settles its neuron and returns the site's outputs.

It is called in inference mode: tensors that outlive the run must be made outside of it.
"""


def settle_at_once(conversion: Conversion, steps: int, settler: Callable[[Site], Settle]) -> bool:
    """Settle every site in one run, if all steps of the calibration data fit into memory.

    Args:
        conversion: The conversion. The calibration data are run in its coding and with its start.
        steps: Number of steps to run.
        settler: Makes the function that settles a site.

    Returns:
        Whether they did. If not, some sites may have been settled on a part of the data.
    """
    snn, sites = conversion.snn, conversion.ann.sites
    neurons = [snn.neuron(site.name) for site in sites]
    for site, neuron in zip(sites, neurons, strict=True):
        snn.module.set_submodule(site.name, StandIn(neuron, settler(site)))
    few = gather(conversion, 1)
    simulator = Simulator(
        snn, few, steps, at=[steps], chunk=steps, memory=memory_for_all_steps(few.device), count_spikes=False
    )
    most = simulator.plan.fit_whole(sys.maxsize, steps, simulator.memory)
    x = gather(conversion, most + 1)
    # A device that runs out of memory nevertheless runs the batch in parts.
    whole = len(x) <= most and simulator.run(x).chunk == (len(x), steps)
    for site, neuron in zip(sites, neurons, strict=True):
        snn.module.set_submodule(site.name, neuron)
    return whole


def gather(conversion: Conversion, count: int) -> Tensor:
    """The first `count` calibration inputs, or all if there are fewer; later batches are not loaded."""
    found: list[Tensor] = []
    for x in conversion.calibration():
        found.append(x[: count - sum(map(len, found))])
        if sum(map(len, found)) == count:
            break
    return torch.cat(found)


class StandIn(Neuron):
    """Stands in for a neuron and settles it before it fires."""

    def __init__(self, neuron: Neuron, settle: Settle) -> None:
        super().__init__(neuron.threshold, neuron.amplitude)
        self.neuron, self.settle = neuron, settle
        self.place = (0, 0)

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        self.place = site, first_sample
        return self.threshold.new_zeros(shape)

    def forward(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        def fire(shift: Tensor | None = None) -> Tensor:
            start = self.neuron.start(membrane.shape, *self.place)
            shifted = current if shift is None else current + shift
            # Not into `out`, which may share memory with the current: that is needed again.
            return self.neuron.advance(shifted, membrane.copy_(start), steps).to(membrane.dtype)

        return self.settle(current.expand(steps, *membrane.shape), fire)
