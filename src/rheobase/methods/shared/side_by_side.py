"""ANN and SNN side by side on the calibration data.

Sums over data are kept in integers, so that neither the size nor the order of batches changes a bit.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.methods.contract import Conversion
from rheobase.network import (
    SNN,
    Network,
    Neuron,
    along_channels,
    fold_amplitudes,
    full_precision,
    mean_over_steps,
    run_graph,
)
from rheobase.simulation import Simulator

# Fractions of a sum's unit: fine enough for any mean, and 2^35 units can be added before 63 bits overflow.
FRACTION = 2.0**28

# Samples whose currents are held at a time.
_SAMPLES = 32


def sum_units(values: Tensor, unit: float, dims: Sequence[int]) -> Tensor:
    """Sum over some dimensions, in integer multiples of 2^−28 of a unit."""
    return (values.double() * (FRACTION / unit)).sum(tuple(dims), dtype=torch.int64)


class ExactSum:
    """A sum of tensors, each value truncated to a multiple of 2^−28 of a unit: independent of the order."""

    def __init__(self, unit: float) -> None:
        self.unit = unit
        self.total: Tensor | None = None

    def add(self, values: Tensor, dims: Sequence[int]) -> None:
        """Add the values, summed over some dimensions."""
        summed = sum_units(values, self.unit, dims)
        self.total = summed if self.total is None else self.total + summed

    @property
    def value(self) -> Tensor:
        """The sum, in double."""
        assert self.total is not None
        return self.total.double() * (self.unit / FRACTION)


def unit_of(neuron: Neuron) -> float:
    """The magnitude of a neuron's outputs."""
    alive = neuron.threshold[~neuron.dead]
    return alive.max().item() if alive.numel() else 1.0


def activations(network: Network, x: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """The outputs of named nodes of a captured network, independent of the batch."""
    found: dict[str, Tensor] = {}

    def see(name: str, value: Tensor) -> None:
        if name in names:
            found[name] = value

    with torch.no_grad(), full_precision(x.device):
        run_graph(network.module, x, see)
    return found


@dataclass(frozen=True)
class Excerpt:
    """Some calibration inputs, and a site's current while the SNN runs on them.

    Attributes:
        inputs: (B, ...).
        current: (T, B, ...), or (B, ...) where it is constant.
        first_sample: The index of the first input.
    """

    inputs: Tensor
    current: Tensor
    first_sample: int


def currents(snn: SNN, site: str, inputs: Iterable[Tensor], steps: int) -> Iterator[Excerpt]:
    """A site's currents over a whole run, some samples at a time."""
    neuron, first = snn.neuron(site), 0
    whole = copy.copy(snn)
    whole.delay = 0  # the recorder sees the steps whose outputs do not count, too
    for batch in inputs:
        for x in torch.split(batch, _SAMPLES):
            recorder = _Recorder(neuron, steps)
            whole.module.set_submodule(site, recorder)
            try:
                Simulator(whole, x, steps, at=[steps], read=site).run(x, first)
            finally:
                whole.module.set_submodule(site, neuron)
            seen = recorder.seen
            yield Excerpt(x, torch.cat(seen, 1 if seen[0].dim() > recorder.dims else 0), first)
            first += len(x)


class _Recorder(Neuron):
    """Stands in for a neuron and records its currents over a whole run; it never fires."""

    watches = True

    def __init__(self, neuron: Neuron, steps: int) -> None:
        super().__init__(neuron.threshold, neuron.amplitude)
        self.steps, self.dims = steps, 0
        self.seen: list[Tensor] = []

    @property
    def window(self) -> int:
        return self.steps

    def forward(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        self.dims = membrane.dim()
        self.seen.append(current.clone())
        return membrane.new_zeros(steps, *membrane.shape)


def mean_output(neuron: Neuron, current: Tensor, membrane: Tensor, steps: int) -> Tensor:
    """A neuron's mean output (B, ...) over a whole run; the membrane is updated."""
    return mean_over_steps(neuron.advance(current, membrane, steps))


def mean_activations(conversion: Conversion) -> dict[str, Tensor]:
    """The mean activation of each site over the data, neuron by neuron, in double."""
    sums = {site: ExactSum(unit_of(conversion.snn.neuron(site))) for site in conversion.snn.sites}
    count = 0
    for x in conversion.calibration():
        for site, a in activations(conversion.ann, x, conversion.snn.sites).items():
            sums[site].add(a, [0])
        count += len(x)
    return {site: total.value / count for site, total in sums.items()}


def shortfall(conversion: Conversion, site: str, steps: int) -> Tensor:
    """The mean over the data of a site's activation minus its mean output over the given steps.

    Returns:
        One number for each neuron, in double, in the shape of a sample.
    """
    neuron, folded = conversion.snn.neuron(site), copy_folded(conversion.snn)
    total, count, simulator = ExactSum(unit_of(neuron)), 0, None
    for x in conversion.calibration():
        a = activations(conversion.ann, x, [site])[site]
        simulator = simulator or Simulator(folded, x, steps, at=[steps], read=site, count_spikes=False)
        rate = simulator.run(x, count).logits[0]
        total.add(a - rate * along_channels(neuron.amplitude, a.dim()), [0])
        count += len(x)
    return total.value / count


def copy_folded(snn: SNN) -> SNN:
    """Copy a network and fold its amplitudes, so that spikes are 0 or 1."""
    folded = copy.deepcopy(snn)
    with torch.no_grad():
        fold_amplitudes(folded.module)
    return folded
