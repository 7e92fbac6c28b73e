"""The rule of a group, and what its gradients need."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GroupRule:
    """The rule of a group; its tensors broadcast against the membrane (B, ...).

    Attributes:
        threshold: θ.
        sizes: The size of each member in units of θ, in the order of firing; 0 for a member that is missing.
        amplitude: The value of a spike of size 1.
        bias: What is subtracted from the membrane at each step; nothing after them.
        returns: λ at each step, the last one for all later steps; empty if no spike is taken back.
        forgives: Whether a group that has sent nothing forgets what is below zero.
        strict: Whether a member fires only above its level.
    """

    threshold: Tensor
    sizes: tuple[Tensor, ...]
    amplitude: Tensor
    bias: tuple[Tensor, ...] = ()
    returns: tuple[float, ...] = ()
    forgives: bool = False
    strict: bool = False

    @property
    def levels(self) -> list[Tensor]:
        """The level of each member: size·θ, or the largest number for one that is missing."""
        most = torch.finfo(self.threshold.dtype).max
        return [torch.where(size > 0, (self.threshold * size).clamp(max=most), most) for size in self.sizes]


@dataclass(frozen=True)
class Trace:
    """What gradients need of a run, each (T, B, ...) in the membrane's memory format.

    Attributes:
        potential: The membrane with the current of each step, before its bias.
        sent: What was sent before each step.
    """

    potential: Tensor
    sent: Tensor
