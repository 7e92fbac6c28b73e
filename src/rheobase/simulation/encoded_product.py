"""Sigma-delta neurons fused with the product of counts that drives them.

Shape letters: T steps, B batch.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rheobase.kernels import choose_backend, encode, report_routine
from rheobase.network import Reshape, SigmaDelta
from rheobase.simulation.count_products import CountProduct, IntegerLinear
from rheobase.simulation.signals import unfold


class EncodedProduct(nn.Module):
    """A product of counts, what moves its results, and the neurons that they drive.

    Between them there are only the product's totals, which become currents where the neurons read them. They
    are not copied: a last change of shape is undone for the neurons instead, and where a move swaps the last
    two dimensions, the memory of the neurons' counts has them swapped too.

    Attributes:
        shape: The shape of one sample in which the neurons read the totals.
        swapped: Whether the memory of the counts has the last two dimensions swapped.
    """

    def __init__(
        self, product: CountProduct, moves: Sequence[nn.Module], neuron: SigmaDelta, shape: Sequence[int]
    ) -> None:
        """Prepare.

        Args:
            product: The product.
            moves: They, in order.
            neuron: The neurons.
            shape: The shape of the product of one sample.
        """
        super().__init__()
        joins = bool(moves) and isinstance(moves[-1], Reshape)
        self.product, self.neuron = product, neuron
        self.moves = nn.Sequential(*(moves[:-1] if joins else moves))
        moved = self.moves(torch.empty(1, *shape, device="meta"))
        self.shape = tuple(moved.shape[1:])
        self.swapped = not joins and moved.dim() > 2 and moved.stride(-1) > 1 and moved.stride(-2) == 1

    def start(self, shape: torch.Size, site: int, first_sample: int) -> Tensor:
        """The counts (B, ...) before the first step, which bytes hold."""
        return self._empty(shape, torch.int8).zero_()

    def make_room(self, count: Tensor, T: int, dtype: torch.dtype) -> Tensor:
        """Memory for the counts (T·B, ...) of T steps."""
        return self._empty((T * len(count), *count.shape[1:]), dtype)

    def _empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if self.swapped:
            shape = (*shape[:-2], shape[-1], shape[-2])
        empty = torch.empty(shape, dtype=dtype, device=self.neuron.threshold.device)
        return empty.mT if self.swapped else empty

    @staticmethod
    def supports(neuron: SigmaDelta) -> bool:
        """Whether there is a kernel for a neuron where it is."""
        compiled = neuron.rounding(neuron.threshold.dim() + 1).compiled
        offered = ("reference", "triton")
        return compiled and choose_backend(neuron.threshold.device, offered=offered) == "triton"

    def advance(
        self, counts: Sequence[Tensor], count: Tensor, out_TB: Tensor, fan_out: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Write the counts of T steps, update the last one, and count events as `kernels.follow` does.

        Args:
            counts: The inputs, (T·B, ...).
            count: (B, ...): the counts before, and then after these steps.
            out_TB: (T, B, ...): the counts after each step.
            fan_out: The synapses behind each neuron.
        """
        report_routine("int8 product" if isinstance(self.product, IntegerLinear) else "half product")
        total = self.product.total(*counts)
        scale, bias = (self._spread(x, total) for x in (self.product.scale, self.product.bias))
        sample, T = count.shape[1:], len(out_TB)
        rounding = self.neuron.rounding(count.dim(), scale, bias)
        if sample != self.shape:
            quantum = rounding.quantum.expand(sample).reshape(self.shape)
            bound = (
                None if rounding.parameter is None else rounding.parameter.expand(sample).reshape(self.shape)
            )
            rounding = replace(rounding, quantum=quantum, parameter=bound)
        return encode(
            unfold(self.moves(total), T),
            count.view(-1, *self.shape),
            rounding,
            sizes=self.neuron.sizes,
            out=out_TB.view(T, -1, *self.shape),
            fan_out=None if fan_out is None else fan_out.reshape(self.shape),
        )

    def _spread(self, values: Tensor | None, total: Tensor) -> Tensor | None:
        """Values that broadcast against the totals of a sample, where the neurons read these."""
        if values is None:
            return None
        moved: Tensor = self.moves(values.expand(1, *total.shape[1:]))
        return moved[0]
