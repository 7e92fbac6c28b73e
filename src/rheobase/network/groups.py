"""The neuron of the methods for few steps: binary members that share a membrane and may take spikes back.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from rheobase.kernels import GroupRule, empty_steps, group_errors, group_fire
from rheobase.network.neurons import IntegrateFire, Neuron
from rheobase.network.operations import along_channels, in_brief
from rheobase.network.starts import Initial

Memory = dict[str, Tensor]
"""What a neuron keeps between steps besides its membrane, each (B, ...)."""


def plain(neuron: Neuron) -> IntegrateFire:
    """A neuron, if it integrates, fires 0 or 1 and resets by subtraction.

    Raises:
        ValueError: It is another one.
    """
    if not isinstance(neuron, IntegrateFire) or neuron.reset != "subtract":
        raise ValueError(
            f"expected integrate-and-fire neurons with reset by subtraction, got {neuron}: choose another "
            "base, such as qcfs, opi or robust-norm"
        )
    return neuron


class Remembering(Neuron):
    """A neuron with more state than its membrane, or with a rule that depends on the step."""

    @property
    def several(self) -> bool:
        """Whether it counts its events itself, because a step has others than one spike of 1."""
        return False

    def advance(
        self,
        current: Tensor,
        membrane: Tensor,
        steps: int,
        out: Tensor | None = None,
        memory: Memory | None = None,
        before: int = 0,
    ) -> Tensor:
        """As `Neuron.advance`.

        Args:
            current: As there.
            membrane: As there.
            steps: As there.
            out: As there.
            memory: Kept by the caller from call to call, empty before the first step; None if this call has
                all steps. A neuron with several members writes the number of those that fired to "events",
                (T, B, ...).
            before: The number of steps before these.
        """
        out = empty_steps(membrane, steps, membrane.dtype) if out is None else out
        return self.run(current, membrane, out, {} if memory is None else memory, before)

    @abstractmethod
    def run(self, current: Tensor, membrane: Tensor, out: Tensor, memory: Memory, before: int) -> Tensor:
        """As `advance`, with all that it may leave out."""


def room_for_events(out: Tensor) -> Tensor:
    """Memory for the number of events of each step, in the format of what is sent."""
    return torch.empty_like(out, dtype=torch.uint8)


class Group(Remembering):
    """Members with one membrane: each is a binary neuron, and what one sends is subtracted for all.

    u = v(t−1) + I(t) − β(t). In their order, each member i fires if the rest of u reaches its size: s_i = 1
    if u ≥ q_i·θ, then u ← u − q_i·θ. The group may also take back a spike of its last member, of size q: if u
    ≤ −λ(t)·q·θ and it has sent more than q/2 more than it has taken back, it sends −q and u ← u + q·θ. v(t)
    is what remains; with `forgives` it is at least 0 as long as the group has sent nothing (net).

    One member of size 1 that takes nothing back is an `IntegrateFire`. m members of size 1/m round the
    membrane down to a multiple of θ/m; n of sizes 1, ½ … 2^(1−n) send its binary digits.

    The start is in units of the last member, so that half a unit rounds to nearest.

    Attributes:
        threshold: θ: one number, one per channel, or one per neuron.
        sizes: q: the size of each member in units of θ: (n,), or (n, C), or (n, ...) for each neuron. Members
            of size 0 do not exist; the last one always does.
        returns: λ at each step, the last one for all later steps; empty if spikes are never taken back.
        forgives: Whether a group that has sent nothing forgets what is below zero.
        bias: β at each step, (steps,) or (steps, C), zero after them; None for none.
    """

    sizes: Tensor
    bias: Tensor | None

    def __init__(
        self,
        threshold: Tensor,
        amplitude: Tensor | None = None,
        initial: Initial | None = None,
        *,
        sizes: Tensor | None = None,
        returns: tuple[float, ...] = (),
        forgives: bool = False,
        bias: Tensor | None = None,
        strict: bool = False,
    ) -> None:
        super().__init__(threshold, amplitude, initial)
        sizes = threshold.new_ones(1) if sizes is None else sizes
        if not sizes.dim() or not (sizes >= 0).all() or not (sizes[-1] > 0).all():
            raise ValueError(
                "expected sizes of at least one member, none below zero and the last above zero, got "
                f"{sizes.tolist()}"
            )
        if len(sizes) > 255:
            raise ValueError(f"expected at most 255 members, whose events fit into a byte, got {len(sizes)}")
        if bias is not None and not bias.dim():
            raise ValueError("expected a bias for each step, got one number")
        self.register_buffer("sizes", sizes.detach().to(threshold))
        self.register_buffer("bias", None if bias is None else bias.detach().to(threshold))
        self.returns, self.forgives, self.strict = tuple(returns), forgives, strict

    @classmethod
    def of(cls, neuron: Neuron) -> "Group":
        """The same neuron as a group; groups are returned as they are.

        Raises:
            ValueError: It is no neuron that integrates, fires 0 or 1 and resets by subtraction.
        """
        if isinstance(neuron, cls):
            return neuron
        found = plain(neuron)
        return cls(found.threshold, found.amplitude, found.initial, strict=found.strict)

    @property
    def members(self) -> int:
        """The largest number of members of a neuron."""
        return int((self.sizes > 0).sum(0).max())

    @property
    def lines(self) -> int:
        """The binary wires of a neuron: one for each member, and one to take spikes back."""
        return self.members + bool(self.returns)

    def count(self, positions: int) -> int:
        return int((self.sizes > 0).sum()) * len(self.sizes) * positions // self.sizes.numel()

    def lowest_level(self, dims: int) -> Tensor:
        return along_channels(self.threshold, dims) * along_channels(self.sizes[-1], dims)

    def forward(self, z: Tensor) -> Tensor:
        most = along_channels(self.sizes.sum(0), z.dim())
        rate = (z / along_channels(self.threshold, z.dim())).clamp(min=0)
        return torch.minimum(rate, most) * along_channels(self.amplitude, z.dim())

    @property
    def several(self) -> bool:
        return len(self.sizes) > 1

    def rule(self, dims: int) -> GroupRule:
        """The rule of its members, for membranes of so many dimensions."""
        bias = () if self.bias is None else tuple(along_channels(b, dims) for b in self.bias)
        return GroupRule(
            threshold=along_channels(self.threshold, dims),
            sizes=tuple(along_channels(size, dims) for size in self.sizes),
            amplitude=along_channels(self.amplitude, dims),
            bias=bias,
            returns=self.returns,
            forgives=self.forgives,
            strict=bool(self.strict),
        )

    def run(self, current: Tensor, membrane: Tensor, out: Tensor, memory: Memory, before: int) -> Tensor:
        sent = memory.setdefault("sent", torch.zeros_like(membrane))
        events = room_for_events(out) if self.several else None
        group_fire(current, membrane, sent, self.rule(membrane.dim()), out=out, events=events, before=before)
        if events is not None:
            memory["events"] = events
        return out

    def add_errors(
        self, current: Tensor, membrane: Tensor, activation: Tensor, unit: float, out: Tensor
    ) -> None:
        """Add up by channel how much more than its activation it sends at each step, as `group_errors`.

        Args:
            current: (T, B, C, ...).
            membrane: Before the first step, (B, C, ...); updated.
            activation: (B, C, ...).
            unit: What the sums are multiples of.
            out: (T, C), int64; increased.
        """
        group_errors(current, membrane, activation, self.rule(membrane.dim()), unit=unit, out=out)

    def extra_repr(self) -> str:
        back = f", returns={self.returns[0]:g}…{self.returns[-1]:g}" if self.returns else ""
        return f"threshold={in_brief(self.threshold)}, members={self.members}{back}, initial={self.initial}"
