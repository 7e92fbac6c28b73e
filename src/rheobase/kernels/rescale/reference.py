"""The definition of what totals stand for."""

from torch import Tensor


def run(total: Tensor, scale: Tensor, bias: Tensor | None, added: Tensor | None) -> Tensor:
    """Compute, as `rescale` says."""
    y = total * scale
    for term in (bias, added):
        y = y if term is None else y.add_(term)
    return y
