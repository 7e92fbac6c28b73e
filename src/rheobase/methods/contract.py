"""What every conversion method answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from rheobase.network import (
    SNN,
    ZERO,
    Coding,
    ConstantCurrent,
    Network,
    Neuron,
    Rectifier,
    Site,
    Start,
)


class Observer(ABC):
    """Remembers what a method needs of a site's activations.

    What it knows at the end must not depend on the order or the size of the batches it was shown.
    """

    @abstractmethod
    def update(self, a: Tensor) -> None:
        """Take in the activations (B, C, ...) of one batch."""


class Maximum(Observer):
    """The largest activation: of the whole layer, or of each channel."""

    def __init__(self, per_channel: bool = False) -> None:
        self.per_channel = per_channel
        self.value: Tensor | None = None

    def update(self, a: Tensor) -> None:
        largest = a.amax([d for d in range(a.dim()) if d != 1]) if self.per_channel else a.amax()
        self.value = largest if self.value is None else torch.maximum(self.value, largest)


@dataclass
class Conversion:
    """A conversion under way, as a method's `finish` sees it: spikes still carry their amplitudes.

    Attributes:
        ann: The captured network.
        snn: The spiking one, every site with its neuron.
        calibration: Gives the calibration inputs, batch by batch, each time it is called.
    """

    ann: Network
    snn: SNN
    calibration: Callable[[], Iterator[Tensor]]


@dataclass(frozen=True)
class Method(ABC):
    """One published way to make a spiking network out of an ordinary one.

    A concrete method is a frozen dataclass: its fields are its settings. It answers four questions about a
    site, and says which start and which input coding its paper uses; both can be replaced in `convert`.
    """

    name: ClassVar[str]
    """The word by which it is called."""

    needs_calibration: ClassVar[bool] = False
    """Whether `convert` must be given calibration data."""

    needs_training: ClassVar[bool] = False
    """Whether `convert` must be given a network that was trained as `prepare` gives it."""

    converges: ClassVar[bool] = True
    """Whether a long run under a constant current approaches the rate twin."""

    handles: ClassVar[tuple[str, ...]] = ()
    """The nonlinearities other than ReLU that it has neurons for: names that `rules.HANDLED` knows."""

    @classmethod
    def example(cls) -> "Method":
        """The method with settings to try it with: by default its own defaults."""
        return cls()

    def activation(self, site: Site) -> nn.Module:
        """What stands at the site while the network is trained: by default what is there already."""
        return Rectifier(site.bound) if site.bound is not None else nn.ReLU()

    def observe(self, site: Site) -> Observer | None:
        """What to remember of the site's activations over the calibration data: by default nothing."""
        return None

    @abstractmethod
    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        """The neuron that takes the site."""

    def finish(self, conversion: Conversion) -> None:  # noqa: B027 - most methods have nothing to add
        """What is left to do once every site has its neuron: by default nothing."""

    @property
    def initial(self) -> Start:
        """The start its paper uses."""
        return ZERO

    @property
    def coding(self) -> Coding:
        """The input coding its paper uses."""
        return ConstantCurrent()
