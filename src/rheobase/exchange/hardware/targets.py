"""The published limits of each target, as checks of layers.

Every target names the source of its limits, and lists the requirements that cannot be checked here.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from rheobase.analysis import latency_of
from rheobase.exchange.hardware.cores import CoreLayer, bits_for
from rheobase.exchange.hardware.lava import LavaUnavailableError, compare_spikes
from rheobase.exchange.hardware.measuring import Numbers
from rheobase.exchange.nir.grid import Grid
from rheobase.exchange.nir.pooling import area, is_power_of_two, pair
from rheobase.network import SNN


@dataclass(frozen=True)
class Violation:
    """A part of a network that a target cannot hold.

    Attributes:
        layer: Where.
        limit: What the target allows.
        found: What the network has.
        remedy: What to change.
    """

    layer: str
    limit: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.layer}: {self.found}; {self.limit}: {self.remedy}"


@dataclass(frozen=True)
class SimulatedRun:
    """The result of running a network in the target's own simulator.

    Attributes:
        simulator: The simulator.
        compared: Number of decisions to fire that were compared.
        differing: Number of them that differ.
        skipped: Why it was not run, if it was not.
    """

    simulator: str
    compared: int = 0
    differing: int = 0
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"not run in {self.simulator}: {self.skipped}"
        return f"run in {self.simulator}: {self.differing:,} of {self.compared:,} decisions to fire differ"


class Target(ABC):
    """A chip, or a way to compute, and its limits.

    Attributes:
        name: Its name.
        source: Where its limits are published.
        unchecked: Requirements that cannot be checked here.
        simulator: The target's own simulator, if networks can be run in it.
        binary: Why it cannot run networks of the sum code, whose spikes have a sign and a size: the limit, as
            a sentence; empty if it can.
    """

    name: str
    source: str
    unchecked: tuple[str, ...]
    simulator: str = ""
    binary: str = ""

    def sums(self, snn: SNN, neurons: Mapping[str, int]) -> Iterator[Violation]:
        """Violations of a network of the sum code, given the number of neurons of each site."""
        if self.binary:
            lines = latency_of(snn, 1).lines
            found = f"its spikes have a sign and a size: {lines} lines, or axons, per neuron"
            remedy = (
                "use a chip with graded spikes and programmable neurons, such as loihi-2 or spinnaker-2, or "
                "a method with spikes of 0 and 1, such as robust-norm"
            )
            yield Violation("every site", self.binary, found, remedy)

    def has(self, pool: nn.AvgPool2d) -> bool:
        """Whether the target has such a pool; others are written as convolutions."""
        return False

    @abstractmethod
    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        """Violations that do not depend on numbers."""

    @abstractmethod
    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        """Violations of a quantised network."""

    def simulate(
        self, snn: SNN, grid: Grid, layers: list[CoreLayer], inputs: Tensor, steps: int
    ) -> SimulatedRun:
        """Run a quantised network in the target's own simulator; called only if it has one."""
        raise NotImplementedError


def _violations(layer: str, *checks: tuple[bool, str, str, str]) -> Iterator[Violation]:
    """A violation for each check that does not hold: whether it holds, limit, found, remedy."""
    for holds, limit, found, remedy in checks:
        if not holds:
            yield Violation(layer, limit, found, remedy)


def _count_cores(sizes: Iterable[tuple[str, int]], cores: int, neurons: int) -> Iterator[Violation]:
    """A violation at the first of these places, with their numbers of neurons, for which no core is left."""
    used = 0
    for place, size in sizes:
        used += math.ceil(size / neurons)
        if used > cores:
            limit = f"a chip has {cores} cores of {neurons} neurons"
            remedy = "use fewer channels or smaller maps, or several chips"
            yield Violation(place, limit, f"up to here the network needs {used} cores", remedy)
            return


def _weight_bits(layer: CoreLayer) -> tuple[bool, str, str, str]:
    weight = layer.weight or 0
    return bits_for(weight) <= 8, "weights have 8 bits", f"its largest is {weight}", "quantise it again"


class GenericInt8(Target):
    """Integers on any processor: weights of 8 bits, sums of 32."""

    name = "generic-int8"
    source = "two's complement arithmetic"
    unchecked: tuple[str, ...] = ("speed and memory of the processor",)

    def has(self, pool: nn.AvgPool2d) -> bool:
        return is_power_of_two(area(pool))

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        yield from ()

    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        for layer in layers:
            yield from _violations(layer.name, _weight_bits(layer))
        for site, largest in needed.membranes.items():
            bits, remedy = bits_for(largest), "run fewer steps or scale inputs"
            yield from _violations(site, (bits <= 32, "sums have 32 bits", f"needs {bits}", remedy))


class Loihi(Target):
    """Intel's Loihi, as the fixed-point models of lava-nc 0.10 compute it."""

    name = "loihi"
    source = "lava-nc 0.10.0's bit-accurate LIF and Dense models, nengo-loihi 1.1.0's limits of a core"
    unchecked = (
        "synaptic memory and axons that leave a core: they depend on how the compiler places the network",
        "the neuron: lava's own LIF resets to zero; reset by subtraction needs a process model of your own",
        "time: spikes travel one step per connection, so layer l runs l steps late",
    )
    simulator = "lava-nc's fixed-point model"
    binary = "spikes are 0 or 1, and neurons keep no count of what they sent"
    _CORES, _NEURONS, _AXONS = 128, 1024, 4096

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        for layer in layers:
            yield from _violations(
                layer.name,
                (layer.analog or layer.fan_in <= self._AXONS, f"a core has {self._AXONS} input axons",
                 f"its neurons read {layer.fan_in} others",
                 "use fewer channels before it, or smaller kernels"),
            )  # fmt: skip
        sizes = ((layer.name, math.prod(layer.outputs)) for layer in layers)
        yield from _count_cores(sizes, self._CORES, self._NEURONS)

    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        for layer in layers:
            yield from _violations(layer.name, _weight_bits(layer))
        for layer in layers:
            if layer.neuron is None:
                continue
            constant = bits_for(needed.currents.get(layer.name, layer.bias or 0))
            what, remedy = "its bias needs", "retrain with smaller biases"
            if layer.analog:
                what = "image and bias together need"
                remedy = "use fewer input_bits (--input-bits), or spikes for images (coding='poisson')"
            yield from _violations(
                layer.name,
                ((layer.threshold or 0) < 2**17, "thresholds have 17 bits",
                 f"its threshold is {layer.threshold}",
                 "use a coarser grid: larger thresholds in the conversion, fewer input bits"),
                (constant <= 13, "a constant current has a mantissa of 13 bits with its sign",
                 f"{what} {constant}", remedy),
            )  # fmt: skip
        for site, largest in needed.membranes.items():
            bits = bits_for(largest)
            yield from _violations(
                site,
                (bits + 6 <= 24, "membranes have 24 bits, 6 of them below one weight unit",
                 f"needs {bits} above those on this data",
                 "run fewer steps, or use fewer input_bits (--input-bits)"),
            )  # fmt: skip

    def simulate(
        self, snn: SNN, grid: Grid, layers: list[CoreLayer], inputs: Tensor, steps: int
    ) -> SimulatedRun:
        try:
            return SimulatedRun(self.simulator, *compare_spikes(snn, grid, layers, inputs, steps))
        except LavaUnavailableError as error:
            return SimulatedRun(self.simulator, skipped=str(error))


class Loihi2(Target):
    """Intel's Loihi 2: neurons with a program, spikes that carry an integer of up to 32 bits."""

    name = "loihi-2"
    source = "Intel Labs' technology brief of Loihi 2, 2021: 128 cores, 1 million neurons; lava-nc 0.10.0"
    unchecked = (
        "synaptic memory and axons: they depend on how the compiler places the network",
        "the neuron: its program; in the sum code it must keep the count of what it sent",
        "products, maxima and norms between neurons: each needs a program of its own",
        "how the input enters, and the sizes of integrate-and-fire membranes",
        "time: spikes travel one step per connection, so layer l runs l steps late",
    )
    _CORES, _NEURONS = 128, 8192

    def sums(self, snn: SNN, neurons: Mapping[str, int]) -> Iterator[Violation]:
        yield from _count_cores(neurons.items(), self._CORES, self._NEURONS)

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        sizes = ((layer.name, math.prod(layer.outputs)) for layer in layers)
        yield from _count_cores(sizes, self._CORES, self._NEURONS)

    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        for layer in layers:
            yield from _violations(layer.name, _weight_bits(layer))


class SpiNNaker2(GenericInt8):
    """SpiNNaker 2: 152 ARM cores that run programs, spikes that are packets with a payload."""

    name = "spinnaker-2"
    source = "SpiNNaker2 datasheet 0.03, 2021; Gonzalez et al., arXiv:2401.04491, 2024"
    unchecked = (
        "memory: 128 KiB for each core, and the DRAM next to the chip",
        "the program of the cores: in the sum code it must keep the count of what each neuron sent",
        "time: how many neurons a core updates within one step",
    )


class Speck(Target):
    """SynSense's Speck: nine DynapCNN cores."""

    name = "speck"
    source = "sinabs 3.1.3, backend.dynapcnn: layer constraints and discretisation"
    unchecked = (
        "events: inputs must be spikes, and cores process them as they arrive, not in steps",
        "saturation: the behaviour of a membrane at the end of its 16 bits",
        "the chip's own tools: they scale the largest weight of a layer to 127",
    )
    binary = "spikes are 0 or 1, and neurons only integrate and fire"
    _KERNELS = tuple(n * 1024 for n in (16, 16, 16, 32, 32, 64, 64, 16, 16))
    _NEURONS = tuple(n * 1024 for n in (64, 64, 64, 32, 32, 16, 16, 16, 16))

    def has(self, pool: nn.AvgPool2d) -> bool:
        sides = {*pair(pool.kernel_size), *pair(pool.stride)}
        return len(sides) == 1 and sides <= {1, 2, 4} and not any(pair(pool.padding))

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        cores = len(self._KERNELS)
        if len(layers) > cores:
            limit, remedy = "there are nine cores, one per layer", "use a shallower network, or several chips"
            yield Violation(layers[cores].name, limit, f"the network has {len(layers)} layers", remedy)
        for layer in layers:
            yield from self._shape(layer)
        if len(layers) <= cores and all(map(self._cores, layers)) and not self._assign(layers):
            limit, found = (
                "each layer needs a core with enough memory",
                "no placement of all layers was found",
            )
            yield Violation(layers[-1].name, limit, found, "make the largest layers narrower")

    def _shape(self, layer: CoreLayer) -> Iterator[Violation]:
        square = layer.kernel[0] == layer.kernel[1]
        yield from _violations(
            layer.name,
            (square and max(layer.kernel) <= 16, "kernels are square with sides of at most 16",
             f"its kernel is {layer.kernel}", "use smaller kernels, and pools of 2 or 4"),
            (all(s in (1, 2, 4, 8) for s in layer.stride), "strides are 1, 2, 4 or 8",
             f"its stride is {layer.stride}", "use one of these"),
            (layer.outputs[0] <= 1024, "a layer has at most 1024 features", f"it has {layer.outputs[0]}",
             "use fewer channels"),
            (layer.neuron is not None, "every layer of weights feeds neurons", "it feeds none",
             "end the network with an activation, and read spike counts"),
            (layer.readers <= 2, "a core sends to at most two others",
             f"{layer.neuron} is read by {layer.readers}", "use fewer branches"),
            (not layer.joins, "branches join by merging spikes, not by adding currents",
             "it adds to the current of another layer", "use a network without residual sums"),
            (not layer.analog, "cores read spikes", "it reads the image as a current",
             "convert with coding='poisson' (rheobase convert --coding poisson)"),
            (bool(self._cores(layer)), "a core has 16 to 64 Ki words for kernels and for neurons",
             "it needs {} words for kernels and {} for neurons".format(*core_memory(layer)),
             "use fewer channels or smaller maps"),
        )  # fmt: skip

    def _cores(self, layer: CoreLayer) -> list[int]:
        kernel, neurons = core_memory(layer)
        rooms = enumerate(zip(self._KERNELS, self._NEURONS, strict=True))
        return [i for i, room in rooms if kernel <= room[0] and neurons <= room[1]]

    def _assign(self, layers: list[CoreLayer]) -> bool:
        """Whether every layer can have its own core: a bipartite matching by augmenting paths."""
        holder: dict[int, int] = {}

        def place(index: int, tried: set[int]) -> bool:
            for core in self._cores(layers[index]):
                if core in tried:
                    continue
                tried.add(core)
                if core not in holder or place(holder[core], tried):
                    holder[core] = index
                    return True
            return False

        return all(place(i, set()) for i in range(len(layers)))

    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        for layer in layers:
            bias, threshold = bits_for(layer.bias or 0), bits_for(layer.threshold or 0)
            yield from _violations(
                layer.name,
                _weight_bits(layer),
                (bias <= 8, "biases have 8 bits", f"its largest needs {bias}",
                 "retrain without biases, or with smaller ones"),
                (threshold <= 16, "thresholds have 16 bits", f"its threshold needs {threshold}",
                 "use larger thresholds in the conversion"),
            )  # fmt: skip
        for site, largest in needed.membranes.items():
            bits = bits_for(largest)
            found = f"needs {bits} on this data"
            yield from _violations(site, (bits <= 16, "membranes have 16 bits", found, "run fewer steps"))


def core_memory(layer: CoreLayer) -> tuple[int, int]:
    """The words that a layer takes of the kernel and the neuron memory of a DynapCNN core.

    Kernels take c·2^(⌈log₂ kx·ky⌉ + ⌈log₂ f⌉), neurons f·2^(⌈log₂ fy⌉ + ⌈log₂ fx⌉).
    """
    (channels, *_), (features, height, width) = layer.inputs, layer.outputs
    up = [math.ceil(math.log2(n)) for n in (layer.kernel[0] * layer.kernel[1], features, height, width)]
    return channels * 2 ** (up[0] + up[1]), features * 2 ** (up[2] + up[3])


TARGETS: dict[str, Target] = {
    target.name: target for target in (GenericInt8(), Loihi(), Loihi2(), SpiNNaker2(), Speck())
}
