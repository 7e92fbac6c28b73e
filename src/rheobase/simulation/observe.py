"""Currents and spikes of all sites over the steps of a simulation.

Shape letters: T steps, B batch; `...` is the shape of one sample.
"""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from rheobase.network import SNN
from rheobase.simulation.plan import plan_calls
from rheobase.simulation.probes import Probe
from rheobase.simulation.simulator import Simulator

Watcher: TypeAlias = Callable[[str, Tensor, int, slice], None]
"""Called with a node's name, its signal (T, B, ...), the number of steps before it, and which rows of the
whole batch these are. The signal is overwritten afterwards: copy what you need."""


def watch_sites(snn: SNN, x: Tensor, steps: int, first_sample: int, see: Watcher) -> None:
    """Simulate, and show every site and every current that changes over time.

    A batch that does not fit into memory at once is run in parts, one after the other.
    """
    rows: dict[str, slice] = {}

    def show(name: str, signal_TB: Tensor, before: int) -> None:
        if before == 0:
            first = rows[name].stop if name in rows else 0
            rows[name] = slice(first, first + signal_TB.shape[1])
        see(name, signal_TB, before, rows[name])

    sources = {snn.source(site) for site in snn.sites}
    probe = Probe([*snn.sites, *sorted(sources)], show)
    Simulator(snn, x, steps, at=[steps], probe=probe).run(x, first_sample)


def still_currents(snn: SNN, x: Tensor, steps: int, first_sample: int) -> dict[str, Tensor]:
    """The mean currents, in double precision, of sites whose current a probe does not see.

    These sites are driven by the same current at every step, or by the coded input itself.
    """
    plan = plan_calls(snn, x.to(snn.dtype))
    names = {snn.source(site) for site in snn.sites}
    found: dict[str, Tensor] = {}
    if str(plan.source.target) in names:
        coded = snn.coding.encode(x.to(snn.dtype), 0, steps, first_sample).double()
        found[str(plan.source.target)] = coded if snn.coding.constant else coded.mean(0)
    for step in plan.steps:
        if step.still and step.name in names:
            run = Simulator(snn, x, steps, at=[steps], read=step.name).run(x)
            found[step.name] = run.logits[0].double()
    return found
