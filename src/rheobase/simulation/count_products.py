"""Matrix products of counts: linear layers of any shape, and products of two signals.

Their results are currents in the network's precision. Sums of integers have no rounding, so a result is the
same on every device, for every batch and every chunk, except that of a linear layer in half precision.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from rheobase.kernels import rescale

# cuBLAS multiplies int8 matrices of more than 16 rows, and of multiples of 8 columns.
_ROWS, _COLUMNS = 17, 8


class CountProduct(nn.Module, ABC):
    """A product of counts, which are int8.

    Attributes:
        scale: What one of its totals stands for, broadcasting against a sample; None for 1.
        bias: Added to what they stand for.
    """

    scale: Tensor | None
    bias: Tensor | None = None

    @abstractmethod
    def total(self, *counts: Tensor) -> Tensor:
        """The sums for counts (rows, ...), before scale and bias."""

    def forward(self, *counts: Tensor) -> Tensor:
        """The current for counts (rows, ...)."""
        total = self.total(*counts)
        if self.scale is not None:
            return rescale(total, self.scale, self.bias)
        return total if self.bias is None else total.add_(self.bias)


class IntegerLinear(CountProduct):
    """A linear layer with 8-bit weights that have one scale per output."""

    def __init__(self, linear: nn.Linear, unit: float) -> None:
        """Round the weights.

        Args:
            linear: The layer.
            unit: What one count of its input stands for.
        """
        super().__init__()
        weight = linear.weight.detach().double() * unit
        scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        rounded = (weight / scale[:, None]).round().to(torch.int8)
        inputs, outputs = (-size % _COLUMNS for size in (linear.in_features, linear.out_features))
        self.outputs = linear.out_features
        self.weight = nn.functional.pad(rounded, (0, inputs, 0, outputs)).contiguous()
        self.missing = inputs
        self.scale = scale.to(linear.weight.dtype)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def total(self, *counts: Tensor) -> Tensor:
        (x,) = counts
        flat = x.reshape(-1, x.shape[-1]).to(torch.int8)
        rows = max(0, _ROWS - len(flat))
        if rows or self.missing:
            flat = nn.functional.pad(flat, (0, self.missing, 0, rows))
        total: Tensor = torch._int_mm(flat, self.weight.t())
        return total[: len(flat) - rows, : self.outputs].view(*x.shape[:-1], -1)


class HalfLinear(CountProduct):
    """A linear layer in half precision, its sums in single precision; on a CPU all in single precision."""

    def __init__(self, linear: nn.Linear, unit: float) -> None:
        """Round the weights, where half precision is fast.

        Args:
            linear: The layer.
            unit: What one count of its input stands for.
        """
        super().__init__()
        weight = (linear.weight.detach() * unit).float()
        self.weight, self.scale = halve(weight) if weight.is_cuda else (weight, None)
        self.bias = None if linear.bias is None else linear.bias.detach()

    def total(self, *counts: Tensor) -> Tensor:
        (x,) = counts
        flat = x.reshape(-1, x.shape[-1]).to(self.weight.dtype)
        if flat.is_cuda:
            y = torch.mm(flat, self.weight.t(), out_dtype=torch.float32)
        else:
            y = flat @ self.weight.t()
        return y.view(*x.shape[:-1], -1)


class AddedProduct(CountProduct):
    """A linear layer whose result is added to another signal."""

    def __init__(self, product: CountProduct) -> None:
        super().__init__()
        self.product, self.scale, self.bias = product, product.scale, product.bias

    def total(self, *counts: Tensor) -> Tensor:
        return self.product.total(*counts)

    def forward(self, *counts: Tensor) -> Tensor:
        """The sum for counts and the other signal."""
        *given, added = counts
        assert self.scale is not None
        return rescale(self.total(*given), self.scale, self.bias, added)


def halve(weight_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Weights in half precision and the scale of each output, so that none is too small or too large."""
    scale_N = weight_NK.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight_NK / scale_N[:, None]).half(), scale_N


class CountMatMul(CountProduct):
    """The product of the matrices of two signals."""

    def __init__(self, dtype: torch.dtype, scale: Tensor | None = None) -> None:
        """Prepare.

        Args:
            dtype: The precision of the result.
            scale: What one count of a product stands for.
        """
        super().__init__()
        self.dtype, self.scale = dtype, scale

    def total(self, *counts: Tensor) -> Tensor:
        a, b = counts
        shape = (*a.shape[:-1], b.shape[-1])
        operand = self.operand(a.device)
        a, b = (x.reshape(-1, *x.shape[-2:]).to(operand) for x in (a, b))
        # The sum of products of counts is exact in single precision.
        total = torch.bmm(a, b, out_dtype=torch.float32) if a.is_cuda else torch.bmm(a, b)
        return total.to(self.dtype).view(shape)

    @staticmethod
    def operand(device: torch.device) -> torch.dtype:
        """What counts are multiplied in."""
        return torch.float16 if device.type == "cuda" else torch.float32

    @staticmethod
    def fits(largest: tuple[int, int], width: int) -> bool:
        """Whether sums of products of counts up to the largest ones stay below 2^24."""
        return largest[0] * largest[1] * width < 2**24
