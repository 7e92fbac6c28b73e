"""Negative spikes with memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

from rheobase.methods.composition import Correction
from rheobase.network import Group, Neuron, Site

Rule = Literal["eager", "annealed", "symmetric"]


@dataclass(frozen=True)
class Signed(Correction):
    """A neuron takes back a spike it sent too early: it fires −1 below a negative threshold.

    Y. Wang, M. Zhang, Y. Chen and H. Qu, "Signed neuron with memory: towards simple, accurate and
    high-efficient ANN-SNN conversion", IJCAI 2022; Y. Hu, Q. Zheng, X. Jiang and G. Pan, "Fast-SNN: fast
    spiking neural network by converting quantized ANN", TPAMI 2023.

    u = v + I(t); +1 at u ≥ θ; −1 at u ≤ −λ(t)·θ, but only if more +1 than −1 have been sent; what is sent is
    subtracted. The rules differ in λ:

    - "eager": λ = 10⁻³, as Fast-SNN has it. A neuron that has just fired is not below zero, so that both
      signs never fire in one step.
    - "annealed": λ falls from 1 + c/4 to 1 − c/2 over the T steps, c = min(1, 8/T): it is reluctant in early
      steps, whose currents are uneven, and ready to correct in the last ones. This rule and `forgive` are
      from a thesis of 2026 that is not published.
    - "symmetric": λ = 1, as Wang et al. have it.

    The default is this package's choice: it loses least in deep networks. `forgive` suits the other two.

    Readings: membranes start at θ/2 with every rule, where Wang et al. start at 0; thresholds are those of
    the base, where they have the largest activation of each neuron. The read-out is linear, without neurons.
    A spike is taken back at the size of the last member of a group, if the base has groups. It has two lines
    per neuron, and its latency is T.
    """

    name = "signed"
    changes = "signs"

    rule: Rule = "eager"
    forgive: bool = False
    """Whether a neuron that has sent nothing forgets what is below zero ("R0"); a long run then need not
    approach the limit."""
    steps: int = 4
    """T, for the annealed rule."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rule not in get_args(Rule):
            raise ValueError(f"signed: rule must be one of {', '.join(get_args(Rule))}, got {self.rule!r}")
        self._expect_integer("steps")
        if self.rule == "annealed" and self.steps > 4096:
            raise ValueError(
                f"signed: the annealed rule takes at most 4096 steps, got {self.steps}: choose rule='eager'"
            )

    @property
    def converges(self) -> bool:
        return super().converges and not self.forgive

    def variants(self) -> Iterator[tuple[str, Self]]:
        for rule in get_args(Rule):
            for forgive in (False, True):
                if (rule, forgive) != (self.rule, self.forgive):
                    memory = "forgiving" if forgive else "keeping"
                    yield f"{rule}, {memory} debts", replace(self, rule=rule, forgive=forgive)

    @property
    def returns(self) -> tuple[float, ...]:
        """λ at each step."""
        if self.rule != "annealed":
            return (1.0,) if self.rule == "symmetric" else (1e-3,)
        share = min(1.0, 8 / self.steps)
        done = [t / max(1, self.steps - 1) for t in range(self.steps)]
        return tuple(1 + share * (0.25 * (1 - p) - 0.5 * p) for p in done)

    def revise(self, neuron: Neuron, site: Site) -> Neuron:
        group = Group.of(neuron)
        group.returns, group.forgives = self.returns, self.forgive
        return group
