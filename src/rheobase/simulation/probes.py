"""What sites are given and what they send, over the steps of a simulation.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from rheobase.network import SNN
from rheobase.simulation.plan import schedule
from rheobase.simulation.simulator import simulate

Watcher: TypeAlias = Callable[[str, Tensor, int, slice], None]
"""Called with a node's name, its signal (T, B, ...), how many steps went before, and which rows of the whole
batch these are. The signal is overwritten afterwards: take what is needed at once."""


def watch_sites(snn: SNN, x: Tensor, steps: int, first_sample: int, see: Watcher) -> None:
    """Simulate, and show every site and every current that changes over time.

    A batch that does not fit into memory at once is run in parts, one after the other.
    """
    rows: dict[str, slice] = {}

    def probe(name: str, signal_TB: Tensor, before: int) -> None:
        if before == 0:
            first = rows[name].stop if name in rows else 0
            rows[name] = slice(first, first + signal_TB.shape[1])
        see(name, signal_TB, before, rows[name])

    sources = {snn.source(site) for site in snn.sites}
    watch = [*snn.sites, *sorted(sources)]
    simulate(snn, x, steps, at=[steps], first_sample=first_sample, probe=probe, watch=watch)


def still_currents(snn: SNN, x: Tensor, steps: int, first_sample: int) -> dict[str, Tensor]:
    """The mean currents, in double, of sites that a simulation's probe does not see.

    These are fed the same at every step, or the coded input itself.
    """
    plan = schedule(snn, x.to(snn.dtype))
    names = {snn.source(site) for site in snn.sites}
    found: dict[str, Tensor] = {}
    if str(plan.source.target) in names:
        coded = snn.coding.encode(x.to(snn.dtype), 0, steps, first_sample).double()
        found[str(plan.source.target)] = coded if snn.coding.constant else coded.mean(0)
    for step in plan.steps:
        if step.still and str(step.node.target) in names:
            run = simulate(snn, x, steps, at=[steps], read=str(step.node.target))
            found[str(step.node.target)] = run.logits[0].double()
    return found
