"""Sigma-delta neurons fused with the connection that drives them.

In the sum code no step's current depends on another step, so that the connection is computed for all steps at
once, and its result is rounded to targets where it is computed. The counts then follow the targets.

Shape letters: T steps, B batch, N output channels.
"""

from typing import Any

import torch
from torch import Tensor, nn

from rheobase.kernels import conv_quantise, follow
from rheobase.network import Constant, SigmaDelta, memory_format
from rheobase.simulation.changes import Rows
from rheobase.simulation.fused_layer import FusedLayer, Synapse, as_one_step
from rheobase.simulation.profiles import Profile
from rheobase.simulation.signals import rows


class QuantisedLayer(FusedLayer):
    """A connection and the sigma-delta neurons it drives, for ReLU with or without a bound."""

    neuron: SigmaDelta

    def __init__(
        self, synapse: Synapse, neuron: SigmaDelta, unit: float, profile: Profile, **options: Any
    ) -> None:
        """Prepare the weights; see `FusedLayer`."""
        assert isinstance(neuron.initial, Constant)
        super().__init__(synapse, neuron, unit, profile, start=neuron.initial.fraction, **options)
        unbounded = self.weight.new_full((1, len(self.bias)), torch.inf, dtype=neuron.threshold.dtype)
        self.high = neuron.target(unbounded)[0].to(self.bias.dtype)

    @staticmethod
    def supports(neuron: SigmaDelta) -> bool:
        """Whether there is a fused layer for a neuron."""
        plain = neuron.function == "relu" and not neuron.signed
        return plain and isinstance(neuron.initial, Constant) and neuron.threshold.dim() <= 1

    def count_scratch(self, shape: tuple[int, ...], triton: bool) -> int:
        return super().count_scratch(shape, triton) + torch.Size(shape).numel()

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        form = torch.channels_last if len(shape) == 4 else torch.contiguous_format
        empty = torch.empty(shape, dtype=self.profile.counts, device=self.bias.device, memory_format=form)
        return empty.zero_()

    def advance(
        self,
        counts_TB: Tensor,
        added: Tensor | None,
        count: Tensor,
        out_TB: Tensor,
        fan_out: Tensor | None = None,
        part: Rows | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Write the counts of T steps, update the last one, and count events as `kernels.follow` does.

        Args:
            counts_TB: The first input, (T, B, ...): counts of the unit.
            added: The second input, as in `_combine`.
            count: (B, N, ...): the counts before, and then after these steps.
            out_TB: (T, B, N, ...): the counts after each step.
            fan_out: (N, ...): the synapses behind each neuron.
            part: The rows of the inputs, with steps and samples as one dimension, that need be computed.
        """
        target_TB = out_TB
        if out_TB.dtype != torch.uint8 and self.neuron.sizes is not None:
            target_TB = torch.empty_like(out_TB, dtype=torch.uint8)  # to read and write less
        if part is None:
            self._quantise(counts_TB, added, target_TB)
        else:
            some, place = part
            shape, form = (len(some), *count.shape[1:]), memory_format(count)
            targets = torch.empty(shape, dtype=torch.uint8, device=count.device, memory_format=form)
            more = None if added is None else _pick(added, some, count)
            self._quantise(_pick(counts_TB, some, count), more, targets[None])
            target_TB.flatten(0, 1).copy_(rows(targets, place))
        return follow(target_TB, count, sizes=self.neuron.sizes, out=out_TB, fan_out=fan_out)

    def _quantise(self, counts_TB: Tensor, added: Tensor | None, out_TB: Tensor) -> None:
        """Write the targets of T steps."""
        counts_TB, added = self._combine(counts_TB, added, out_TB.dim() - 1)
        maps = [x for x in (counts_TB, out_TB, added) if x is not None]
        if added is None or added.dim() == out_TB.dim():
            maps = [as_one_step(x) for x in maps]
        weight, options = self.weight, dict[str, Any]()
        if isinstance(self.synapse, nn.Conv2d):
            options = {"stride": self.synapse.stride, "padding": self.synapse.padding}
        else:
            weight, *maps = (x[..., None, None] for x in (weight, *maps))
        if added is not None:
            options |= {"residual": maps[2], "residual_scale": self.scale}
        conv_quantise(maps[0], weight, self.bias, self.threshold, self.high, out=maps[1], **options)


def _pick(x: Tensor, some: Tensor, count: Tensor) -> Tensor:
    """Some rows of an input, moving or still, as one step."""
    moving = x.dim() > count.dim()
    return (rows(x.flatten(0, 1), some) if moving else rows(x, some % len(count)))[None]
