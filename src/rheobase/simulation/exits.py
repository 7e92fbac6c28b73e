"""Early exit: a sample leaves the batch when its answer is safe, and the batch shrinks.

A rule looks at the mean outputs after every step and gives each sample a score; with a score of at least
`level` the sample leaves, and its answer stays what it is. `fit_exit` finds the level on training data.

Shape letters: B batch, K outputs.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Exit(ABC):
    """When an answer is taken as safe.

    Attributes:
        level: The score with which a sample leaves; infinity for never.
        after: The first step after which a sample may leave.
    """

    level: float
    after: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.level, (int, float)) or self.level != self.level:
            raise ValueError(f"an exit's level is a number, or infinity for never; got {self.level!r}")
        if not isinstance(self.after, int) or self.after < 1:
            raise ValueError(f"a sample leaves after step 1 at the earliest, got after={self.after!r}")

    @abstractmethod
    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        """How safe each answer is, (B,).

        Args:
            mean_BK: The mean outputs after the present step.
            state: What the rule remembers of earlier steps, a row for each sample; empty at first.
        """


@dataclass(frozen=True)
class Margin(Exit):
    """By how much the largest mean output exceeds the second largest."""

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        if mean_BK.shape[1] < 2:
            raise ValueError("a margin needs at least two outputs; this network has one")
        first, second = mean_BK.topk(2, dim=1).values.unbind(1)
        return first - second


@dataclass(frozen=True)
class Confidence(Exit):
    """The largest probability in the softmax of the mean outputs."""

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        return mean_BK.softmax(1).amax(1)


@dataclass(frozen=True)
class Patience(Exit):
    """For how many steps on end, the present one included, the answer has been the same."""

    def score(self, mean_BK: Tensor, state: dict[str, Tensor]) -> Tensor:
        answer = mean_BK.argmax(1)
        before = state.get("answer", torch.full_like(answer, -1))
        state["same"] = torch.where(answer == before, state.get("same", 0), 0) + 1
        state["answer"] = answer
        return state["same"].to(mean_BK.dtype)


class Attendance:
    """Which samples of a batch are still being simulated, and with what answer the others left.

    Attributes:
        rows: The numbers in the batch of those that are simulated.
        left: The step after which each sample of the batch left, (B,); the last one for those that stayed.
    """

    def __init__(self, rule: Exit | None, x: Tensor, steps: int) -> None:
        """Begin with everyone.

        Args:
            rule: When a sample leaves; None for never.
            x: The batch, (B, ...).
            steps: How many steps there are.
        """
        if rule is not None and not isinstance(rule, Exit):
            raise TypeError(
                "an exit is a rule with its level, as rheobase.fit_exit gives it or rheobase.Margin(0.5); "
                f"got {rule!r}"
            )
        self.rule = rule
        self.rows = torch.arange(x.shape[0], device=x.device)
        self.left = torch.full((x.shape[0],), steps, device=x.device)
        self.answers: Tensor | None = None
        self.state: dict[str, Tensor] = {}

    def take(self, mean_BK: Tensor, step: int) -> Tensor:
        """The answers of the whole batch after a step, given the mean outputs of those simulated."""
        if self.rule is None:
            return mean_BK
        if self.answers is None:
            self.answers = mean_BK.clone()
        here = self.left[self.rows] >= step
        self.answers[self.rows[here]] = mean_BK[here]
        safe = self.rule.score(mean_BK, self.state) >= self.rule.level
        if step >= self.rule.after:
            self.left[self.rows[here & safe]] = step
        return self.answers.clone()

    def present(self, before: int, steps: int) -> Tensor:
        """For each of some steps who of those simulated had not left before it, (steps, B)."""
        numbers = torch.arange(before + 1, before + steps + 1, device=self.rows.device)
        return self.left[self.rows] >= numbers[:, None]

    def pick(self, signal_TB: Tensor) -> Tensor:
        """The part of a signal of the whole batch, (steps, B, ...), that belongs to those simulated."""
        return signal_TB if len(self.rows) == len(self.left) else signal_TB[:, self.rows]

    def dismiss(self, step: int) -> Tensor | None:
        """Let go who left up to a step: which rows stay, or None if all do."""
        stay = (self.left[self.rows] > step).nonzero().flatten()
        if len(stay) == len(self.rows):
            return None
        self.rows = self.rows[stay]
        self.state = {name: values[stay] for name, values in self.state.items()}
        return stay
