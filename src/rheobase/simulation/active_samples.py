"""Which samples of a batch are still simulated.

Shape letters: B batch, K outputs, T steps of a chunk.
"""

import torch
from torch import Tensor

from rheobase.network import classes_of
from rheobase.simulation.exits import Exit


class ActiveSamples:
    """The samples that are still simulated, and the answers of those that left.

    Attributes:
        rule: The rule by which samples leave; None if they all stay.
        settles: Whether samples leave, too, when they are silent: no step after one without events has any.
        last_event: The last step at which anything fired for each sample of the batch, (B,), at least 1.
        rows: The positions in the batch of the samples that are simulated.
        left: The step after which each sample of the batch left, (B,); the last step for those that stay.
    """

    def __init__(self, rule: Exit | None, x: Tensor, steps: int, settles: bool) -> None:
        """Start with the whole batch x, (B, ...), of a run over some steps; see `settles` above."""
        self.rule, self.settles = rule, settles
        self.last_event = torch.ones(x.shape[0], dtype=torch.int64, device=x.device)
        self.rows = torch.arange(x.shape[0], device=x.device)
        self.left = torch.full((x.shape[0],), steps, device=x.device)
        self.answers: Tensor | None = None
        self.state: dict[str, Tensor] = {}

    def take(self, mean_BK: Tensor, step: int) -> Tensor:
        """The answers of the whole batch after a step, given the mean outputs of the active samples."""
        if self.rule is None and (not self.settles or len(self.rows) == len(self.left)):
            self.answers = mean_BK
            return mean_BK
        if self.answers is None:
            classes_of(mean_BK)  # which refuses outputs without classes
            self.answers = mean_BK
        self.answers = self.answers.clone()
        here = self.left[self.rows] >= step
        self.answers[self.rows[here]] = mean_BK[here]
        if self.rule is None:
            return self.answers
        safe = self.rule.score(mean_BK, self.state) >= self.rule.level
        if step >= self.rule.after:
            self.left[self.rows[here & safe]] = step
        return self.answers

    def see_events(self, active_TB: Tensor, before: int) -> None:
        """Note at which steps of a chunk anything fired for each active sample."""
        steps = torch.arange(before + 1, before + 1 + len(active_TB), device=active_TB.device)
        latest = (active_TB * steps[:, None]).amax(0)
        self.last_event[self.rows] = torch.maximum(self.last_event[self.rows], latest)

    def present(self, before: int, steps: int) -> Tensor:
        """For each of some steps which active samples had not left before it, (steps, B)."""
        numbers = torch.arange(before + 1, before + steps + 1, device=self.rows.device)
        return self.left[self.rows] >= numbers[:, None]

    def pick(self, signal_TB: Tensor) -> Tensor:
        """The part of a signal of the whole batch, (T, B, ...), that belongs to the active samples."""
        return signal_TB if len(self.rows) == len(self.left) else signal_TB[:, self.rows]

    def drop(self, step: int) -> Tensor | None:
        """Remove the samples that left up to a step: the rows that stay, or None if all do."""
        remain = self.left[self.rows] > step
        if self.settles:
            remain &= self.last_event[self.rows] == step
        stay = remain.nonzero().flatten()
        if len(stay) == len(self.rows):
            return None
        self.rows = self.rows[stay]
        self.state = {name: values[stay] for name, values in self.state.items()}
        return stay
