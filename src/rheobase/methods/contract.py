"""The contract of a conversion method: what it answers and what it declares."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal, Self, get_args

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
    """Collects what a method needs to know about a site's activations.

    The result must not depend on the order or the size of the batches.
    """

    @abstractmethod
    def update(self, a: Tensor) -> None:
        """Take in the activations (B, C, ...) of one batch."""


@dataclass
class Conversion:
    """An unfinished conversion, as a method's `finish` sees it: amplitudes are not folded yet.

    Attributes:
        ann: The captured ANN.
        snn: The SNN, with a neuron at every site.
        calibration: Iterates over the calibration inputs, batch by batch, each time it is called.
    """

    ann: Network
    snn: SNN
    calibration: Callable[[], Iterator[Tensor]]


Fits = Literal["nothing", "biases", "weights"]

Cost = Literal["reads", "observes", "runs"]
COSTS: tuple[Cost, ...] = get_args(Cost)
"""From the cheapest to the most expensive."""


@dataclass(frozen=True)
class Tuning:
    """The training that a method's paper adds to the conversion.

    Attributes:
        of: What it trains: the model before the conversion, or the SNN after it.
        train: Trains a copy: `train(network, data, **settings)`.
    """

    of: Literal["model", "snn"]
    train: Callable[..., Any]


@dataclass(frozen=True)
class Method(ABC):
    """A published way to convert an ANN to an SNN.

    A concrete method is a frozen dataclass: its fields are its settings. It answers four questions about a
    site (`activation`, `observe`, `neuron`, `finish`) and declares the rest.
    """

    name: ClassVar[str]
    """The name it is called by."""

    tuning: ClassVar[Tuning | None] = None
    """The training that its paper adds, if any."""

    @property
    def title(self) -> str:
        """Its name in tables: that of a correction comes after the names of the methods it corrects."""
        return self.name

    @property
    def needs_training(self) -> bool:
        """Whether `convert` needs a network that was trained as `prepare` returns it."""
        return False

    @property
    def own_activation(self) -> bool:
        """Whether `prepare` replaces ReLU by an activation of the method."""
        return False

    @property
    def aims_at_steps(self) -> bool:
        """Whether a conversion, with any start, is made for runs of one length, its setting `steps`."""
        return False

    @property
    def code(self) -> Literal["rate", "sum"]:
        """What a value is in its networks: the mean of what is sent over the steps, or its sum."""
        return "rate"

    @property
    def converges(self) -> bool:
        """Whether a long run under a constant current approaches `snn.limit`."""
        return True

    @property
    def handles(self) -> tuple[str, ...]:
        """The nonlinearities other than ReLU that it has neurons for: names that `rules.HANDLED` knows."""
        return ()

    @property
    def encodes(self) -> bool | None:
        """Whether sites are put in front of layers whose input is not events, and of products of signals.

        None for networks with analog operations only: normalisation, softmax, products of matrices.
        """
        return False

    @property
    def cost(self) -> Cost:
        """What a conversion does: reads the trained network, observes its activations, or runs the SNN."""
        return "reads"

    @property
    def fits(self) -> Fits:
        """What `finish` adjusts on purpose.

        "biases" are constant currents added by `shift_current`; "weights" may change in any way.
        """
        return "nothing"

    @property
    def needs_calibration(self) -> bool:
        """Whether `convert` needs calibration data."""
        return self.cost != "reads"

    @property
    def initial(self) -> Start:
        """The start that its paper uses; `convert(initial=)` replaces it."""
        return ZERO

    @property
    def coding(self) -> Coding:
        """The input coding that its paper uses; `convert(coding=)` replaces it."""
        return ConstantCurrent()

    @classmethod
    def example(cls) -> Self:
        """The method with settings to try it with: by default its own defaults."""
        return cls()

    def aimed_at(self, steps: int) -> Self:
        """The method for runs of this many steps: by default with the setting `steps`, if it has that."""
        aim = {"steps": steps} if any(f.name == "steps" for f in fields(self)) else {}
        return replace(self, **aim)

    def trained_as(self, network: Network) -> Self:
        """The method with the settings that a network was trained with: by default as it is."""
        return self

    def variants(self) -> Iterator[tuple[str, Self]]:
        """Other settings worth trying, each with a description: by default none."""
        yield from ()

    def activation(self, site: Site) -> nn.Module:
        """The activation at the site during training: by default the one that is there."""
        return Rectifier(site.bound) if site.bound is not None else nn.ReLU()

    def observe(self, site: Site) -> Observer | None:
        """An observer for the site's activations over the calibration data: by default none."""
        return None

    def _expect_integer(self, setting: str, least: int = 1, most: int | None = None) -> None:
        """Refuse a value of a setting that is not an integer in this range."""
        value = getattr(self, setting)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or value < least or (most is not None and value > most):
            allowed = f"of at least {least}" if most is None else f"in {least} … {most}"
            raise ValueError(f"{self.name}: {setting} must be an integer {allowed}, got {value!r}")

    @abstractmethod
    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        """The neuron that replaces the site's activation."""

    def finish(self, conversion: Conversion) -> None:  # noqa: B027 - most methods have nothing to add
        """What remains once every site has its neuron: by default nothing."""
