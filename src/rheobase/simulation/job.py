"""What a run is asked to do."""

from dataclasses import dataclass

import torch

from rheobase.network import SNN
from rheobase.simulation.exits import Exit
from rheobase.simulation.plan import Plan
from rheobase.simulation.probes import Probe


@dataclass(frozen=True)
class Job:
    """What is the same for all parts of a batch.

    Attributes:
        snn: The network.
        plan: Its calls in order.
        counts: The dtype of signals that are kept as counts.
        steps: The number of time steps.
        chunk: Steps simulated at a time.
        at: The steps read out, in rising order.
        delay: Steps before outputs count.
        exit_rule: When samples leave; None for never.
        probe: Sees signals.
        probed: The names of the nodes that it sees.
        in_order: Whether the parts run one after the other, because something watches them.
        alone: Whether the batch is a single sample.
    """

    snn: SNN
    plan: Plan
    counts: torch.dtype
    steps: int
    chunk: int
    at: tuple[int, ...]
    delay: int
    exit_rule: Exit | None
    probe: Probe | None
    probed: tuple[str, ...]
    in_order: bool
    alone: bool
