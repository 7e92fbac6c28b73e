"""The result of a simulation.

Shape letters: B batch, S steps read out, K outputs.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Run:
    """The result of a simulation.

    Attributes:
        logits: (S, B, K): the mean output over the steps after the delay up to t, for each t of `at`.
        at: The steps read out.
        spikes: For each site the number of spikes of the whole batch at every step, (steps,); empty if spikes
            were not counted.
        sop: Synaptic operations of the whole batch at every step, (steps,); zero if they were not counted.
        kernels: For each site the routines that computed it. Parts of one computation are joined by " + ",
            routines used for different chunks by ", ".
        profile: The arithmetic, one of `profiles.PROFILES`.
        chunk: How many (samples, steps) were simulated at a time.
        left: The step after which each sample left, (B,); the last step for samples that stayed.
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
    notes: tuple[str, ...] = ()
