"""Costs of a run besides energy: its true latency, its wires and bits, and when it falls silent.

A number of steps alone does not say when an answer is there. *Synchronous* networks update every layer at
every step. Neurons with a *window* collect their whole input first, so each layer adds a window. Hardware
that takes one step to deliver a spike adds a step per layer to both.
"""

import math
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from rheobase.analysis.energy import Convention, ann_joules, count_operations
from rheobase.network import SNN, Neuron, SigmaDelta, Waiting


@dataclass(frozen=True)
class Latency:
    """What the number of steps of a run stands for.

    Attributes:
        steps: The steps in which outputs are read.
        pre: The steps before them, whose outputs do not count.
        schedule: "synchronous" or "windows".
        depth: The spiking depth: the largest number of neurons in a row.
        windows: How many windows pass, one after the other, before the answer; 1 if synchronous.
        lines: Binary wires that a neuron drives: 1 for spikes of 0 or 1, two for each size of a signed event,
            one per bit for graded events.
        bits: What one event carries besides its address: ⌈log₂ lines⌉ and at least 1, or a graded event's
            integer size.
        graded: Whether an event can have any size, so that a synapse multiplies instead of adding.
        idle: Steps between two windows.
    """

    steps: int
    pre: int
    schedule: str
    depth: int
    windows: int
    lines: int
    bits: int
    graded: bool = False
    idle: int = 0

    @property
    def total(self) -> int:
        """Steps from the first input to the answer."""
        return self.pre + self.steps * self.windows + self.idle * (self.windows - 1)

    @property
    def with_delays(self) -> int:
        """The same where a spike takes one step to the next layer and shorter paths wait for longer ones."""
        return self.total + self.depth

    @property
    def brief(self) -> str:
        """The steps to the answer in words."""
        return f"{self.total} step{'s' if self.total > 1 else ''}"

    @property
    def cells(self) -> tuple[str, str]:
        """For tables: the steps to the answer, then with a step of delay per layer; and the lines."""
        return f"{self.total} ({self.with_delays})", str(self.lines)

    def __str__(self) -> str:
        wires = f"{self.lines} line{'s' if self.lines > 1 else ''} per neuron"
        waits = "" if self.windows == 1 else f", {self.windows} windows of {self.steps}"
        waits += f", {self.idle} steps between two" if self.idle else ""
        waits += f", of which {self.pre} before outputs count" if self.pre else ""
        return (
            f"true latency {self.brief} ({self.schedule}{waits}), {self.with_delays} with one step of "
            f"delay per layer; {wires}"
        )


def latency_of(snn: SNN, steps: int, delay: int | None = None) -> Latency:
    """The true latency of a network that runs for some steps, the delay included; by default its own."""
    delay = snn.delay if delay is None else delay
    lines, bits, graded = map(max, zip(*map(_wires, snn.neurons.values()), strict=True))
    depth, waits = spiking_depth(snn), snn.window is not None
    windows = depth + (not snn.coding.constant) if waits else 1
    schedule = "windows" if waits else "synchronous"
    idle = max((n.idle for n in snn.neurons.values() if isinstance(n, Waiting)), default=0)
    return Latency(steps - delay, delay, schedule, depth, windows, lines, bits, bool(graded), idle)


def _wires(neuron: Neuron) -> tuple[int, int, bool]:
    """The lines of a neuron, the bits of an event, and whether it is graded."""
    if isinstance(neuron, SigmaDelta) and neuron.sizes is None:
        return neuron.lines, neuron.lines, True
    return neuron.lines, max(1, math.ceil(math.log2(neuron.lines))), False


def spiking_depth(snn: SNN) -> int:
    """The largest number of neurons in a row between input and output."""
    return max(snn.depths.values())


@dataclass(frozen=True)
class Silence:
    """When samples fell silent: after these steps nothing fired any more.

    Attributes:
        bound: The steps that were run.
        share: The share of samples that were silent within them, in percent.
        median: The step after which half of the samples were silent; None if that is not within the bound.
        most: The same for 99.9 % of the samples.
        largest: The same for all samples.
    """

    bound: int
    share: float
    median: int | None
    most: int | None
    largest: int | None

    @classmethod
    def of(cls, counts: list[int], samples: int) -> "Silence":
        """From the number of samples whose last event was at each step.

        A sample that fired at the last step may have more to send: it does not count as silent.
        """
        silent = list(accumulate(counts[:-1]))

        def reached(share: float) -> int | None:
            needed = math.ceil(share * samples - 1e-9)
            return next((t for t, n in enumerate(silent, start=1) if n >= needed), None)

        within = 100 * silent[-1] / samples if silent else 0.0
        return cls(len(counts), within, reached(0.5), reached(0.999), reached(1))

    def __str__(self) -> str:
        beyond = f"more than {self.bound}"
        found = (beyond if t is None else str(t) for t in (self.median, self.most, self.largest))
        median, most, largest = found
        return (
            f"samples fall silent after {median} steps (median), {most} (99.9 %) and {largest} (all); "
            f"{self.share:.4g} % within the {self.bound} steps"
        )


@dataclass(frozen=True)
class QuantisedAnn:
    """The ANN with quantised activations, which a network of the sum code computes.

    Attributes:
        bits: Bits of an activation, with its sign where there is one.
        mac: Multiply-accumulates per sample.
        joules: Energy per sample, each operation at the convention's price, which is that of full precision.
    """

    bits: int
    mac: int
    joules: float

    def __str__(self) -> str:
        return (
            f"quantised ANN: {self.mac:,} multiplications by activations of {self.bits} bits, "
            f"{self.joules * 1e6:.3g} µJ at the price of full precision"
        )


def quantised_ann(snn: SNN, x: Tensor, convention: Convention) -> QuantisedAnn:
    """The quantised ANN of a network of the sum code."""
    found = [n for n in snn.neurons.values() if isinstance(n, SigmaDelta)]
    operations = count_operations(snn.module, x[:1].to(snn.dtype), copied=False)
    counted = operations.mac if convention.analog else operations.flop
    bits = max(n.levels.bit_length() + n.signed for n in found)
    return QuantisedAnn(bits, operations.mac, ann_joules(counted, convention))
