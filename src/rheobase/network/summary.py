"""The summary of a converted network: its sites, their neurons and thresholds, and how often they fire."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from rheobase.io import Result, Shown, axes_or_new, draw_bars

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Counted(Protocol):
    """The part of a `rheobase.simulation.Run` that rates are computed from."""

    @property
    def spikes(self) -> Mapping[str, Tensor]:
        """The spikes of the batch at every step, by site."""
        ...

    @property
    def left(self) -> Tensor:
        """The steps of each sample."""
        ...


@dataclass(frozen=True)
class SiteSummary:
    """One site of a converted network.

    Attributes:
        site: Its name.
        kind: The kind of its neurons.
        neurons: Their number for one sample; None if the shape of the input is not known.
        lowest: The lowest threshold of its channels, without dead ones.
        highest: The highest one.
        dead: The share of channels that can never fire.
        initial: How its membranes start.
        rate: Mean spikes of a neuron per step, if a run was given.
    """

    site: str
    kind: str
    neurons: int | None
    lowest: float
    highest: float
    dead: float
    initial: str
    rate: float | None


@dataclass(frozen=True, repr=False)
class Summary(Result):
    """The sites of a converted network; prints as a table.

    Attributes:
        title: The method, the start and the coding of the network.
        sites: The sites in order.
    """

    title: str
    sites: tuple[SiteSummary, ...]

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the rate of each site if a run was given, else its highest threshold."""
        rates = {each.site: each.rate for each in self.sites if each.rate is not None}
        highest = {each.site: each.highest for each in self.sites}
        what = "spikes per neuron and step" if rates else "highest threshold"
        return draw_bars(axes_or_new(ax), {what: rates or highest}, what)

    def _records(self) -> list[dict[str, Any]]:
        return [asdict(each) for each in self.sites]

    def _shown(self) -> Shown:
        rows = []
        for each in self.sites:
            same = each.lowest == each.highest
            threshold = f"{each.lowest:.4g}" if same else f"{each.lowest:.4g} to {each.highest:.4g}"
            neurons = "–" if each.neurons is None else f"{each.neurons:,}"
            rate = "–" if each.rate is None else f"{each.rate:.4f}"
            rows.append((each.site, each.kind, each.initial, neurons, threshold, f"{each.dead:.0%}", rate))
        header = ("site", "neuron", "start", "neurons", "threshold", "dead", "rate")
        return Shown(header, rows, self.title, left=3)
