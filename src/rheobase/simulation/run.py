"""The result of a simulation.

Shape letters: B batch, S steps read out, K outputs.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rheobase.io import Result, Shown, axes_or_new, draw_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, repr=False)
class Run(Result):
    """The result of a simulation; prints the spikes of each site.

    Attributes:
        logits: (S, B, K): for each t of `at` the mean output over the steps after the delay up to t; in the
            sum code the sum of the outputs up to t.
        at: The steps read out.
        spikes: For each site the number of spikes of the whole batch at every step, (steps,); empty if spikes
            were not counted.
        sop: Synaptic operations of the whole batch at every step, (steps,); zero if they were not counted.
        kernels: For each site the routines that computed it. Parts of one computation are joined by " + ",
            routines used for different chunks by ", ".
        profile: The arithmetic, one of `profiles.PROFILES`.
        chunk: How many (samples, steps) were simulated at a time.
        left: The step after which each sample left, (B,); the last step for samples that stayed.
        last_event: In the sum code the last step at which any neuron of each sample fired, (B,): after it the
            sample is silent and its answer final. A sample that fired at the last step may not be silent yet.
            None in the rate code.
        notes: What could not be done as requested, or not as fast, and why.
    """

    logits: Tensor
    at: tuple[int, ...]
    spikes: dict[str, Tensor]
    sop: Tensor
    kernels: dict[str, str]
    profile: str
    chunk: tuple[int, int]
    left: Tensor
    last_event: Tensor | None = None
    notes: tuple[str, ...] = ()

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the spikes of each site at every step, per sample."""
        lines = {site: (range(1, len(means) + 1), means) for site, means in self._means().items()}
        return draw_lines(axes_or_new(ax), lines, "time step", "spikes per sample")

    def _means(self) -> dict[str, list[float]]:
        """The spikes of each site at every step, per sample."""
        return {site: (counts / self.logits.shape[1]).tolist() for site, counts in self.spikes.items()}

    def _records(self) -> list[dict[str, Any]]:
        steps = zip(*self._means().values(), strict=True)
        return [{"step": t, **dict(zip(self.spikes, row, strict=True))} for t, row in enumerate(steps, 1)]

    def _shown(self) -> Shown:
        shape = tuple(self.logits.shape)
        head = f"{shape[1]} samples, {len(self.sop)} steps, profile {self.profile}; outputs {shape}"
        rows = [(s, f"{sum(means):,.1f}", self.kernels.get(s, "")) for s, means in self._means().items()]
        return Shown(("site", "spikes per sample", "computed by"), rows, head, "\n".join(self.notes))
