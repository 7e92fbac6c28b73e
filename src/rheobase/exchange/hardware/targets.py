"""What is published of each target, as checks of layers.

Every target says where its limits are published. What cannot be checked here is listed, not passed over.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from rheobase.exchange.hardware.cores import CoreLayer, bits_for, device_memory, pair
from rheobase.exchange.hardware.lava import LavaUnavailableError, compare_spikes
from rheobase.exchange.nir.grid import Grid
from rheobase.exchange.nir.pooling import area
from rheobase.network import SNN


@dataclass(frozen=True)
class Violation:
    """Something in a network that a target cannot hold.

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
class Numbers:
    """What a quantised network needs, measured on data.

    Attributes:
        currents: For each layer that reads the analog input: its largest current in whole numbers.
        membranes: For each site: its largest membrane in whole numbers.
    """

    currents: dict[str, int]
    membranes: dict[str, int]


@dataclass(frozen=True)
class SimulatedRun:
    """What came of running a network in a target's own simulator.

    Attributes:
        where: The simulator.
        compared: How many decisions to fire were compared.
        differing: How many of them differed.
        skipped: Why it was not run, if it was not.
    """

    where: str
    compared: int = 0
    differing: int = 0
    skipped: str = ""

    def __str__(self) -> str:
        if self.skipped:
            return f"not run in {self.where}: {self.skipped}"
        if self.differing:
            return f"run in {self.where}: {self.differing:,} of {self.compared:,} decisions to fire differ"
        return f"run in {self.where}: all {self.compared:,} decisions to fire are the same"


class Target(ABC):
    """A chip, or a way to compute, and its limits.

    Attributes:
        name: The word by which it is called.
        source: Where its limits are published.
        unchecked: What its limits are known to be too, but cannot be checked here.
        simulator: The target's own simulator, where a network can be run in it.
    """

    name: str
    source: str
    unchecked: tuple[str, ...]
    simulator: str = ""

    def has(self, pool: nn.AvgPool2d) -> bool:
        """Whether it has such a pool: by default none; what it has not is written as a convolution."""
        return False

    @abstractmethod
    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        """What does not fit, whatever the numbers are."""

    @abstractmethod
    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        """What does not fit of a quantised network."""

    def simulate(
        self, snn: SNN, grid: Grid, layers: list[CoreLayer], inputs: Tensor, steps: int
    ) -> SimulatedRun:
        """Run a quantised network in the target's own simulator; asked for only where there is one."""
        raise NotImplementedError


def _wide_weights(layers: list[CoreLayer]) -> Iterator[Violation]:
    for layer in layers:
        if layer.weight is not None and bits_for(layer.weight) > 8:
            yield Violation(
                layer.name, "weights have 8 bits", f"its largest is {layer.weight}", "quantise it again"
            )


class GenericInt8(Target):
    """Whole numbers on any processor: weights of 8 bits, sums of 32."""

    name = "generic-int8"
    source = "two's complement arithmetic"
    unchecked = ("speed and memory of the processor",)

    def has(self, pool: nn.AvgPool2d) -> bool:
        return area(pool) & (area(pool) - 1) == 0  # a mean of these is a shift of bits

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        yield from ()

    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        yield from _wide_weights(layers)
        for site, largest in needed.membranes.items():
            if bits_for(largest) > 32:
                yield Violation(
                    site, "sums have 32 bits", f"needs {bits_for(largest)}", "run fewer steps or scale inputs"
                )


class Loihi(Target):
    """Intel's Loihi, as the fixed-point models of lava-nc 0.10 compute it."""

    name = "loihi"
    source = "lava-nc 0.10.0's bit-accurate LIF and Dense models, nengo-loihi 1.1.0's limits of a core"
    unchecked = (
        "synaptic memory and the axons that leave a core: they depend on how the compiler places the network",
        "the neuron: lava's own LIF resets to zero; reset by subtraction needs a process model of your own",
        "time: spikes travel one step for each connection, so layer l runs l steps late",
    )
    simulator = "lava-nc's fixed-point model"
    _CORES, _NEURONS, _AXONS = 128, 1024, 4096

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        for layer in layers:
            if not layer.analog and layer.fan_in > self._AXONS:
                yield Violation(
                    layer.name, f"a core takes in {self._AXONS} axons",
                    f"its neurons read {layer.fan_in} others",
                    "use fewer channels before it, or smaller kernels",
                )  # fmt: skip
        used = 0
        for layer in layers:
            used += math.ceil(math.prod(layer.outputs) / self._NEURONS)
            if used > self._CORES:
                yield Violation(
                    layer.name, f"a chip has {self._CORES} cores of {self._NEURONS} neurons",
                    f"with it, the network needs {used} cores or more",
                    "use fewer channels or smaller maps, or several chips",
                )  # fmt: skip
                return

    def simulate(
        self, snn: SNN, grid: Grid, layers: list[CoreLayer], inputs: Tensor, steps: int
    ) -> SimulatedRun:
        try:
            return SimulatedRun(self.simulator, *compare_spikes(snn, grid, layers, inputs, steps))
        except LavaUnavailableError as error:
            return SimulatedRun(self.simulator, skipped=str(error))

    def numbers(self, layers: list[CoreLayer], needed: Numbers) -> Iterator[Violation]:
        yield from _wide_weights(layers)
        for layer in layers:
            if layer.neuron is None:
                continue
            assert layer.threshold is not None
            assert layer.bias is not None
            if layer.threshold >= 2**17:
                yield Violation(
                    layer.name, "thresholds have 17 bits", f"its threshold is {layer.threshold}",
                    "use a coarser grid: larger thresholds in the conversion, fewer input bits",
                )  # fmt: skip
            constant = needed.currents.get(layer.name, layer.bias)
            what = "image and bias together" if layer.analog else "its bias"
            if bits_for(constant) > 13:
                yield Violation(
                    layer.name, "a constant current has a mantissa of 13 bits, with its sign",
                    f"{what} need {bits_for(constant)}",
                    "use fewer input_bits, or show images as spikes (coding=Poisson())" if layer.analog
                    else "retrain with smaller biases",
                )  # fmt: skip
        for site, largest in needed.membranes.items():
            if bits_for(largest) + 6 > 24:
                yield Violation(
                    site, "membranes have 24 bits, 6 of them below one weight unit",
                    f"needs {bits_for(largest)} above those on this data",
                    "run fewer steps, or use fewer input_bits",
                )  # fmt: skip


class Speck(Target):
    """SynSense's Speck: nine DynapCNN cores."""

    name = "speck"
    source = "sinabs 3.1.3, backend.dynapcnn: layer constraints and discretisation"
    unchecked = (
        "events: inputs must come as spikes, and cores take them as they come, not in steps",
        "saturation: what a membrane does at the end of its 16 bits",
        "what the chip's own tools do to weights: they scale the largest of a layer to 127",
    )
    _KERNELS = tuple(n * 1024 for n in (16, 16, 16, 32, 32, 64, 64, 16, 16))
    _NEURONS = tuple(n * 1024 for n in (64, 64, 64, 32, 32, 16, 16, 16, 16))

    def has(self, pool: nn.AvgPool2d) -> bool:
        sides = {*pair(pool.kernel_size), *pair(pool.stride)}
        return len(sides) == 1 and sides <= {1, 2, 4} and not any(pair(pool.padding))

    def structure(self, layers: list[CoreLayer]) -> Iterator[Violation]:
        if len(layers) > len(self._KERNELS):
            yield Violation(
                layers[len(self._KERNELS)].name, "there are nine cores, one for each layer",
                f"the network has {len(layers)}", "use a shallower network, or several chips",
            )  # fmt: skip
        for layer in layers:
            yield from self._shape(layer)
        fitting = [layer for layer in layers if self._cores(layer)]
        if len(fitting) == len(layers) <= len(self._KERNELS) and not self._assign(layers):
            yield Violation(
                layers[-1].name, "each layer needs a core with enough memory of its own",
                "no way to place all layers was found", "make the largest layers narrower",
            )  # fmt: skip

    def _shape(self, layer: CoreLayer) -> Iterator[Violation]:
        square = layer.kernel[0] == layer.kernel[1]
        checks = (
            (square and max(layer.kernel) <= 16, "kernels are square, of at most 16 a side",
             f"its kernel is {layer.kernel}", "use smaller kernels, and pools of 2 or 4"),
            (all(s in (1, 2, 4, 8) for s in layer.stride), "strides are 1, 2, 4 or 8",
             f"its stride is {layer.stride}", "use one of these"),
            (layer.outputs[0] <= 1024, "a layer has at most 1024 features", f"it has {layer.outputs[0]}",
             "use fewer channels"),
            (layer.neuron is not None, "every layer of weights has neurons behind it",
             "there are none behind it", "end the network with an activation, and read spike counts"),
            (layer.readers <= 2, "a core sends to at most two others",
             f"{layer.neuron} is read by {layer.readers}", "use fewer branches"),
            (not layer.joins, "branches are joined by merging spikes, not by adding currents",
             "it adds to the current of another layer", "use a network without residual sums"),
            (not layer.analog, "cores take spikes", "it reads the image as a current at every step",
             "convert with coding=Poisson()"),
            (bool(self._cores(layer)), "a core has 16 to 64 Ki words for kernels and for neurons",
             "it needs {} words for kernels and {} for neurons".format(*device_memory(layer)),
             "use fewer channels or smaller maps"),
        )  # fmt: skip
        for holds, limit, found, remedy in checks:
            if not holds:
                yield Violation(layer.name, limit, found, remedy)

    def _cores(self, layer: CoreLayer) -> list[int]:
        kernel, neurons = device_memory(layer)
        return [
            i
            for i, room in enumerate(zip(self._KERNELS, self._NEURONS, strict=True))
            if kernel <= room[0] and neurons <= room[1]
        ]

    def _assign(self, layers: list[CoreLayer]) -> bool:
        """Whether every layer can have a core of its own: augmenting paths over the cores that fit."""
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
        yield from _wide_weights(layers)
        for layer in layers:
            assert layer.bias is not None
            assert layer.threshold is not None
            if bits_for(layer.bias) > 8:
                yield Violation(
                    layer.name, "biases have 8 bits", f"its largest needs {bits_for(layer.bias)}",
                    "retrain without biases, or with smaller ones",
                )  # fmt: skip
            if bits_for(layer.threshold) > 16:
                yield Violation(
                    layer.name, "thresholds have 16 bits", f"its needs {bits_for(layer.threshold)}",
                    "use larger thresholds in the conversion",
                )  # fmt: skip
        for site, largest in needed.membranes.items():
            if bits_for(largest) > 16:
                yield Violation(
                    site,
                    "membranes have 16 bits",
                    f"needs {bits_for(largest)} on this data",
                    "run fewer steps",
                )


TARGETS: dict[str, Target] = {target.name: target for target in (GenericInt8(), Loihi(), Speck())}
