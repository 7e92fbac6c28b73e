"""Sigma-delta neurons fused with the product of counts that drives them.

Shape letters: T steps, B batch.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from rheobase.kernels import choose_backend, encode, report_routine
from rheobase.network import SigmaDelta
from rheobase.simulation.count_products import CountLinear, IntegerLinear
from rheobase.simulation.signals import unfold


class EncodedProduct(nn.Module):
    """A linear layer of counts, what moves its results, and the neurons that they drive.

    Between them there are only the layer's totals: they become currents where the neurons read them.
    """

    def __init__(self, product: CountLinear, moves: Sequence[nn.Module], neuron: SigmaDelta) -> None:
        super().__init__()
        self.product, self.moves, self.neuron = product, nn.Sequential(*moves), neuron

    @staticmethod
    def supports(neuron: SigmaDelta) -> bool:
        """Whether there is a kernel for a neuron where it is."""
        compiled = neuron.rounding(neuron.threshold.dim() + 1).compiled
        offered = ("reference", "triton")
        return compiled and choose_backend(neuron.threshold.device, offered=offered) == "triton"

    def advance(
        self, counts: Tensor, count: Tensor, out_TB: Tensor, fan_out: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Write the counts of T steps, update the last one, and count events as `kernels.follow` does.

        Args:
            counts: The input, (T·B, ...).
            count: (B, ...): the counts before, and then after these steps.
            out_TB: (T, B, ...): the counts after each step.
            fan_out: The synapses behind each neuron.
        """
        report_routine("int8 product" if isinstance(self.product, IntegerLinear) else "half product")
        total = self.product.total(counts)
        scale, bias = (self._spread(x, total) for x in (self.product.scale, self.product.bias))
        return encode(
            unfold(self.moves(total), len(out_TB)),
            count,
            self.neuron.rounding(count.dim(), scale, bias),
            sizes=self.neuron.sizes,
            out=out_TB,
            fan_out=fan_out,
        )

    def _spread(self, values: Tensor | None, total: Tensor) -> Tensor | None:
        """Values of the outputs of the product, for each neuron of a sample."""
        if values is None:
            return None
        moved: Tensor = self.moves(values.expand(1, *total.shape[1:]))
        return moved[0]
