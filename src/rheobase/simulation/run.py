"""The result of a simulation.

Shape letters: B batch, S steps read out, K outputs.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Run:
    """The result of a simulation.

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
