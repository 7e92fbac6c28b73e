"""The result of a simulation.

Shape letters: B batch, S steps read out, K outputs.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Run:
    """What a simulation gives.

    Attributes:
        logits: (S, B, K): the mean output over the steps up to t, less those of a delay, for each t of `at`.
        at: The steps read out.
        spikes: For each site the number of spikes of the whole batch at every step, (steps,); empty unless
            counted.
        sop: The synaptic operations of the whole batch at every step, (steps,); zero unless asked for.
        backend: The kernels that really ran.
        profile: The arithmetic, one of `profiles.PROFILES`.
        chunk: How many (samples, steps) were simulated at a time.
        left: The step after which each sample left, (B,); the last one where it stayed to the end.
        notes: What could not be done as asked for, or not as fast, and why.
    """

    logits: Tensor
    at: tuple[int, ...]
    spikes: dict[str, Tensor]
    sop: Tensor
    backend: str
    profile: str
    chunk: tuple[int, int]
    left: Tensor
    notes: tuple[str, ...] = ()
