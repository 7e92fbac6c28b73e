"""Methods that correct another one: `convert(model, "qcfs", then=["signed", "ftbc"])`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Literal, Self

from torch import nn

from rheobase.methods.contract import COSTS, Conversion, Cost, Fits, Method, Observer
from rheobase.methods.registry import find, get, names
from rheobase.network import HALF, Coding, Network, Neuron, Site, Start

ORDER = ("neurons", "members", "signs", "biases")
"""What corrections change, in the only order in which they compose: each is fitted after those before it.
Those that change the neurons themselves compose with no other."""

_BASE = "robust-norm"


@dataclass(frozen=True)
class Correction(Method):
    """A method that changes the network that another one, its base, makes.

    The base answers what is at a site during training, what is observed, and which neuron goes there. The
    correction revises that neuron in `revise`, or the whole network in `correct`. All corrections of a chain
    have revised the neurons before the base and then each of them is fitted: what runs the network to fit it
    runs the neurons of the whole chain.
    """

    changes: ClassVar[str]
    """What it changes, one of `ORDER`."""
    adds: ClassVar[Cost] = "reads"
    """What it does in addition to its base."""

    base: Method = field(default=_BASE, kw_only=True)  # type: ignore[assignment]
    """The method that it corrects: a method, or the name of one. The default takes any trained network."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", get(self.base))
        if isinstance(self.base, Correction) and (reason := self._explain_clash(self.base)):
            raise ValueError(f"{self.name} cannot correct {self.base.title}: {reason}")

    def _explain_clash(self, other: "Correction") -> str:
        """Why it cannot come after another correction; empty if it can."""
        if self.changes == other.changes:
            return f"both change its {self.changes}: leave one of them out"
        if "neurons" in (self.changes, other.changes):
            alone = self.name if self.changes == "neurons" else other.name
            return f"{alone} has neurons of its own: leave the other one out"
        if ORDER.index(other.changes) > ORDER.index(self.changes):
            return f"it changes {self.changes}, which {other.name} relies on: put it first"
        return ""

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        """The neuron of the base, changed: by default as it is."""
        return neuron

    def correct(self, conversion: Conversion) -> None:
        """What remains once the base has finished: by default nothing."""

    @property
    def title(self) -> str:
        return f"{self.base.title} + {self.name}"

    @property
    def needs_training(self) -> bool:
        return self.base.needs_training

    @property
    def own_activation(self) -> bool:
        return self.base.own_activation

    @property
    def aims_at_steps(self) -> bool:
        return self.base.aims_at_steps or any(f.name == "steps" for f in fields(self))

    @property
    def code(self) -> Literal["rate", "sum"]:
        return self.base.code

    @property
    def converges(self) -> bool:
        return self.base.converges

    @property
    def handles(self) -> tuple[str, ...]:
        return self.base.handles

    @property
    def encodes(self) -> bool | None:
        return self.base.encodes

    @property
    def cost(self) -> Cost:
        return max(self.base.cost, self.adds, key=COSTS.index)

    @property
    def fits(self) -> Fits:
        return self.base.fits

    @property
    def needs_calibration(self) -> bool:
        return self.base.needs_calibration or self.adds != "reads"

    @property
    def initial(self) -> Start:
        """Half a threshold, unless the base fits a start or currents that have half of it already."""
        return HALF if self.base.fits == "nothing" else self.base.initial

    @property
    def coding(self) -> Coding:
        return self.base.coding

    def aimed_at(self, steps: int) -> Self:
        return replace(super().aimed_at(steps), base=self.base.aimed_at(steps))

    def trained_as(self, network: Network) -> Self:
        return replace(self, base=self.base.trained_as(network))

    def activation(self, site: Site) -> nn.Module:
        return self.base.activation(site)

    def observe(self, site: Site) -> Observer | None:
        return self.base.observe(site)

    def neuron(self, site: Site, observer: Observer | None) -> Neuron:
        found = self.base.neuron(site, observer)
        try:
            return self.revise(found, site)
        except ValueError as error:
            raise ValueError(f"{self.name} cannot correct {self.base.title}: {error}") from None

    def finish(self, conversion: Conversion) -> None:
        self.base.finish(conversion)
        self.correct(conversion)


def compose(method: Method, then: str | Method | Sequence[str | Method] | None) -> Method:
    """A method with corrections, each on top of those before it; None is no correction.

    Raises:
        TypeError: They are not names or methods.
        ValueError: One of them is no correction, corrects another method already, or they do not compose in
            this order.
    """
    if not isinstance(then, str | Method | Sequence | None):
        raise TypeError(
            f"expected corrections as a list of names or methods, got {then!r}: pass settings as "
            'then=[rheobase.methods.get("ftbc", steps=8)]'
        )
    for each in [then] if isinstance(then, str | Method) else then or ():
        found = get(each)
        if not isinstance(found, Correction):
            known = ", ".join(n for n in names() if issubclass(find(n), Correction))
            raise ValueError(f"{found.name} corrects no other method; those that do are {known}")
        if found.base != get(_BASE):
            raise ValueError(
                f"{found.title} is given as a correction, but has a method to correct: leave base= out of "
                f"{found.name}, and list all corrections in their order"
            )
        method = replace(found, base=method)
    return method


def extend(method: Method, correction: Correction) -> Method:
    """A method with one more correction, at the place where it composes with those that it has.

    Raises:
        ValueError: There is no such place.
    """
    chain = [replace(correction, base=get(_BASE))]
    while isinstance(method, Correction):
        chain.append(replace(method, base=get(_BASE)))
        method = method.base
    chain.sort(key=lambda each: ORDER.index(each.changes))
    return compose(method, chain)
