"""The rule of a rehearsal."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RehearsedRule:
    """The rule of a rehearsal; its tensors broadcast against the membrane (B, ...).

    Attributes:
        threshold: θ.
        amplitude: The value of a spike.
        shifts: Whether a neuron learns where to start; otherwise, whether to be silent.
        length: The steps of a turn.
        turn: The neurons' own turn, from 1.
        turns: The number of turns.
        strict: Whether a neuron fires only above its threshold.
        clear: How far beyond its threshold a membrane must be, in units of the threshold.
    """

    threshold: Tensor
    amplitude: Tensor
    shifts: bool
    length: int
    turn: int
    turns: int
    strict: bool
    clear: float
