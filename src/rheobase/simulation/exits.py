"""Early-exit rules: a sample leaves the batch when its answer is safe.

A rule scores the mean outputs of each sample after every step. A sample whose score reaches `level` leaves
and keeps its answer. `fit_exit` finds the level on training data.

Shape letters: B batch, K outputs.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exit(ABC):
    """A rule that says when an answer is safe.

    Attributes:
        level: The score at which a sample leaves; infinity for never.
        after: The first step after which a sample may leave.
    """

    level: float
    after: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.level, (int, float)) or self.level != self.level:
            raise ValueError(f"level must be a number, or infinity for never; got {self.level!r}")
        if not isinstance(self.after, int) or self.after < 1:
            raise ValueError(f"after must be an integer of at least 1, got {self.after!r}")

    @abstractmethod
    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        """Score how safe each answer is, (B,).

        Args:
            mean_BK: The mean outputs after the present step.
            state: What the rule remembers of earlier steps, one row per sample; empty at first.
        """


@dataclass(frozen=True)
class Margin(Exit):
    """A sample leaves when the difference between its two largest mean outputs reaches the level."""

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        first, second = mean_BK.topk(2, dim=1).values.unbind(1)
        return first - second


@dataclass(frozen=True)
class Confidence(Exit):
    """A sample leaves when the largest probability in the softmax of its mean outputs reaches the level."""

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        return mean_BK.softmax(1).amax(1)


@dataclass(frozen=True)
class Patience(Exit):
    """A sample leaves when its answer has been the same for `level` consecutive steps, this one included."""

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        answer = mean_BK.argmax(1)
        before = state.get("answer", torch.full_like(answer, -1))
        state["same"] = torch.where(answer == before, state.get("same", 0), 0) + 1
        state["answer"] = answer
        return state["same"].to(mean_BK.dtype)
