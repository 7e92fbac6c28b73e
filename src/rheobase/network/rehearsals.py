"""Neurons that learn from a first run of the same input, or wait for their whole input.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

from typing import Literal

import torch
from torch import Tensor

from rheobase.kernels import RehearsedRule, rehearsed_fire
from rheobase.network.groups import Memory, Remembering
from rheobase.network.neurons import IntegrateFire, Neuron
from rheobase.network.operations import along_channels
from rheobase.network.starts import Initial

Rule = Literal["mask", "shift"]

_CLEAR = 1e-3
"""How far beyond its threshold a membrane must be, in units of the threshold."""


class Rehearsed(Remembering):
    """Integrates and fires, and starts again with what it has learned in its turn of a rehearsal.

    A run begins with `turns` turns of `length` steps; after each, every membrane starts again. At the end of
    its own turn a neuron has fired n times and its membrane is v, both without a correction. By its `rule`:

    - "mask": unless v > 10⁻³·θ, the neuron sends nothing from then on.
    - "shift": if v < 0 and n ≥ 1, it starts lower from then on, by max(θ, u − 0.999·θ) with u the smallest
      membrane at which it fired: it fires once less. If v ≥ θ, it starts higher, by max(θ, 1.001·θ − w) with
      w the largest membrane at which it did not fire.

    Attributes:
        rule: "mask" or "shift".
        length: The steps of a turn.
        turn: Its own turn, from 1.
        turns: The number of turns; `SNN.delay` is at least as many times their length.
    """

    def __init__(
        self,
        threshold: Tensor,
        amplitude: Tensor | None = None,
        initial: Initial | None = None,
        *,
        rule: Rule,
        length: int,
        turn: int = 1,
        turns: int = 1,
        strict: bool = False,
    ) -> None:
        super().__init__(threshold, amplitude, initial)
        if not 1 <= turn <= turns:
            raise ValueError(f"expected a turn in 1 … {turns}, got {turn}")
        self.rule, self.length, self.turn, self.turns, self.strict = rule, length, turn, turns, strict

    @classmethod
    def of(cls, neuron: IntegrateFire, rule: Rule, length: int) -> "Rehearsed":
        """A neuron with a rehearsal of one turn."""
        return cls(
            neuron.threshold,
            neuron.amplitude,
            neuron.initial,
            rule=rule,
            length=length,
            strict=neuron.strict,
        )

    def run(self, current: Tensor, membrane: Tensor, out: Tensor, memory: Memory, before: int) -> Tensor:
        rule = RehearsedRule(
            threshold=along_channels(self.threshold, membrane.dim()),
            amplitude=along_channels(self.amplitude, membrane.dim()),
            shifts=self.rule == "shift",
            length=self.length,
            turn=self.turn,
            turns=self.turns,
            strict=bool(self.strict),
            clear=_CLEAR,
        )
        return rehearsed_fire(current, membrane, memory, rule, out=out, before=before)

    def extra_repr(self) -> str:
        turn = f"turn {self.turn} of {self.turns}, length={self.length}"
        return f"rule={self.rule}, {turn}, initial={self.initial}"


class Waiting(Neuron):
    """Waits for its whole input, then sends as many spikes as that asks for.

    count = clip(floor((ΣI(t) + v(0))/θ), 0, N) over the N steps of a run: a quantiser with N levels. The
    spikes come first in the window, or with `even` at equal distances.

    Attributes:
        window: N; a run has exactly N steps, and each layer fires a window after the layer before it.
        idle: Steps between two windows.
        even: Whether spikes are spread over the window.
    """

    def __init__(
        self,
        threshold: Tensor,
        amplitude: Tensor | None = None,
        initial: Initial | None = None,
        *,
        window: int,
        idle: int = 0,
        even: bool = False,
    ) -> None:
        super().__init__(threshold, amplitude, initial)
        self._window, self.idle, self.even = window, idle, even

    @property
    def window(self) -> int:
        return self._window

    def advance(self, current: Tensor, membrane: Tensor, steps: int, out: Tensor | None = None) -> Tensor:
        N, theta = self.window, along_channels(self.threshold, membrane.dim())
        for step in current.expand(N, *membrane.shape):  # one by one, so that no sum depends on the batch
            membrane += step
        count = (membrane / theta).floor().clamp(0, N)
        membrane -= count * theta
        spikes = membrane.new_empty(N, *membrane.shape) if out is None else out
        amplitude = along_channels(self.amplitude, membrane.dim())
        done = torch.zeros_like(count)
        for t in range(N):
            before, done = done, ((t + 1) * count / N).floor() if self.even else done
            torch.mul(done > before if self.even else count > t, amplitude, out=spikes[t])
        return spikes

    def extra_repr(self) -> str:
        return f"window={self.window}, idle={self.idle}, even={self.even}, initial={self.initial}"
