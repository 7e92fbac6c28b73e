"""Settle all neurons in one run of the network, instead of one run up to each of them.

A layer runs all its steps before the next layer does. So it can be measured and changed in between, and later
layers see it in its final form.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from rheobase.io import display
from rheobase.kernels import empty_steps
from rheobase.methods.contract import Conversion
from rheobase.methods.shared.side_by_side import activations, currents
from rheobase.network import Neuron, Site
from rheobase.simulation import Simulator, memory_for_all_steps

# Values of a signal that a CPU works on at a time. They stay in its caches, and the memory of temporary
# tensors of this size is used again; larger ones are new pages, which the system fills with zeros first.
_VALUES = 1 << 20


class Fire(Protocol):
    """Runs the neuron of a site from its start."""

    def __call__(self, shift: Tensor | None = None) -> Iterable[Tensor]:
        """Yield its outputs (T, B, ...), some samples at a time, with a shift added to every current."""


Settle = Callable[[Tensor, Fire], Tensor | None]
"""Sees the current (T, B, ...) of a site, settles its neuron, and returns a shift of its currents, if any.

It is called in inference mode: tensors that outlive the run must be made outside of it.
"""


def in_parts(steps: int, samples: Tensor) -> Iterator[slice]:
    """The samples to work on at a time, if each has so many steps of the shape of one of these."""
    most = _VALUES // (steps * samples[0].numel()) if samples.device.type == "cpu" else len(samples)
    for first in range(0, len(samples), max(1, most)):
        yield slice(first, first + max(1, most))


def settle_at_once(conversion: Conversion, steps: int, settler: Callable[[Site], Settle]) -> bool:
    """Settle every site in one run, if all steps of the calibration data fit into memory.

    Args:
        conversion: The conversion. The calibration data are run in its coding and with its start.
        steps: Number of steps to run.
        settler: Makes the function that settles a site.

    Returns:
        Whether they did. If not, some sites may have been settled on a part of the data.

    Raises:
        ValueError: The network needs runs of another length.
    """
    snn, sites = conversion.snn, conversion.ann.sites
    if snn.window not in (None, steps):
        raise ValueError(
            f"a method measures the network over {steps} steps, but its neurons need runs of {snn.window}: "
            "give both methods the same `steps`"
        )
    if snn.delay >= steps:
        raise ValueError(
            f"a method measures the network over {steps} steps, but outputs count only after {snn.delay}: "
            "give both methods the same `steps`"
        )
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

    watches = True

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
        site, first_sample = self.place

        def fire(shift: Tensor | None = None) -> Iterator[Tensor]:
            for some in in_parts(steps, membrane):
                part = membrane[some]
                part.copy_(self.neuron.start(part.shape, site, first_sample + some.start))
                given = current[some] if current.dim() == membrane.dim() else current[:, some]
                output = self.neuron.advance(given if shift is None else given + shift, part, steps)
                yield output.to(membrane.dtype)

        shift = self.settle(current.expand(steps, *membrane.shape), fire)
        sent, first = empty_steps(membrane, steps, membrane.dtype) if out is None else out, 0
        # It may share memory with the current, so each part is written when nothing reads its current again.
        for output in fire(shift):
            sent[:, first : first + output.shape[1]] = output
            first += output.shape[1]
        return sent


@dataclass(frozen=True)
class Lesson:
    """One site on some of the data.

    Attributes:
        current: Its currents, (T, B, ...).
        activation: Its activations in the ANN, (B, ...).
        place: The number of the site, and that of the first input.
    """

    current: Tensor
    activation: Tensor
    place: tuple[int, int]

    def start(self, neuron: Neuron) -> Tensor:
        """The membranes of a neuron before the first step."""
        return neuron.start(self.activation.shape, *self.place)


Lessons = Callable[[], Iterable[Lesson]]
"""Yields the lessons of all data each time it is called."""


def fit_layers(conversion: Conversion, steps: int, what: str, fit: Callable[[Neuron, Lessons], None]) -> None:
    """Fit each site in order, with those before it already fitted: in one run if memory allows it.

    Args:
        conversion: The conversion. The calibration data are run in its coding and with its start.
        steps: Number of steps to run.
        what: What the progress bar says.
        fit: Fits the neuron of a site to lessons. It may be called for a site again, with more data.
    """
    snn = conversion.snn
    neurons = snn.neurons
    seen: dict[str, Tensor] = {}

    def lesson(name: str, a: Tensor, current: Tensor, first_sample: int) -> Lesson:
        return Lesson(current.expand(steps, *a.shape), a, (snn.sites.index(name), first_sample))

    def settler(site: Site) -> Settle:
        def settle(current: Tensor, _: Fire) -> None:
            if site.name not in seen or len(seen[site.name]) != current.shape[1]:
                # Of all sites at once: as much memory as their membranes, which the run holds anyway.
                seen.update(activations(conversion.ann, gather(conversion, current.shape[1]), snn.sites))
            a = seen.pop(site.name)
            fit(
                neurons[site.name],
                lambda: (
                    lesson(site.name, a[some], current[:, some], some.start) for some in in_parts(steps, a)
                ),
            )
            bar.advance()

        return settle

    def parts(name: str) -> Iterable[Lesson]:
        for part in currents(snn, name, conversion.calibration(), steps):
            a = activations(conversion.ann, part.inputs, [name])[name]
            yield lesson(name, a, part.current, part.first_sample)

    with display(what, len(snn.sites)) as bar:
        if not settle_at_once(conversion, steps, settler):
            for name, neuron in neurons.items():
                fit(neuron, partial(parts, name))
                bar.advance()
