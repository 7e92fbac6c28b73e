"""The neuron of differential coding, which sends changes of a mean.

Shape letters: T steps, B batch; `...` is one sample's own shape.
"""

import torch
from torch import Tensor

from rheobase.kernels import differential_fire
from rheobase.network.groups import Memory, Remembering, room_for_events
from rheobase.network.operations import along_channels
from rheobase.network.starts import Initial


class Differential(Remembering):
    """Events change the mean that its receivers assume: an event s at step t adds s/t to it.

    With m(t) = m(t−1) + s(t)/t the mean after step t, what a neuron has sent up to t in the rate code is
    t·m(t): at each step the receivers take m(t−1) for granted and add the event. So v ← v + I(t) − m(t−1);
    the event is the largest +θ·2^(−k), k < sizes, with v ≥ ¾ of it, or the largest −θ·2^(−k) with v ≤ −¾ of
    it, if as much has been sent; and v ← v − s. The signal of the simulation is m(t−1) + s(t), and only s(t)
    counts as an event.

    In the first step of a run it does nothing. There receivers learn their bias currents, which hardware
    adds once: that step is part of the delay of the network.

    The start is in units of the smallest event.

    Attributes:
        threshold: θ, the largest event; one number or one per channel.
        sizes: n, the number of sizes of an event.
        bound: The largest mean in units of θ, shaped like it; None for a ReLU.
    """

    bound: Tensor | None

    def __init__(
        self,
        threshold: Tensor,
        amplitude: Tensor | None = None,
        initial: Initial | None = None,
        *,
        sizes: int,
        bound: Tensor | None = None,
    ) -> None:
        super().__init__(threshold, amplitude, initial)
        self.sizes = sizes
        self.register_buffer("bound", None if bound is None else bound.detach().to(threshold))

    @property
    def lines(self) -> int:
        """One for each sign and size of an event."""
        return 2 * self.sizes

    @property
    def several(self) -> bool:
        return True

    def lowest_level(self, dims: int) -> Tensor:
        return along_channels(self.threshold, dims) * 2.0 ** (1 - self.sizes)

    def forward(self, z: Tensor) -> Tensor:
        rate = (z / along_channels(self.threshold, z.dim())).clamp(min=0)
        if self.bound is not None:
            rate = torch.minimum(rate, along_channels(self.bound, z.dim()))
        return rate * along_channels(self.amplitude, z.dim())

    def run(self, current: Tensor, membrane: Tensor, out: Tensor, memory: Memory, before: int) -> Tensor:
        dims = membrane.dim()
        memory["events"] = room_for_events(out)
        return differential_fire(
            current,
            membrane,
            memory.setdefault("mean", torch.zeros_like(membrane)),
            along_channels(self.threshold, dims),
            sizes=self.sizes,
            bound=None if self.bound is None else along_channels(self.bound, dims),
            amplitude=along_channels(self.amplitude, dims),
            out=out,
            events=memory["events"],
            before=before,
        )

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, initial={self.initial}"
