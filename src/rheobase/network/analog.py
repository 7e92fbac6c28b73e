"""Analog operations: what a network of the sum code computes on sums between its events.

In the sum code each is a function of the sums so far, so that it is exact as soon as its inputs are silent.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from rheobase.network.activations import FUNCTIONS, PARAMETERS
from rheobase.network.operations import Accumulating


class _Norm(Accumulating):
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.eps = eps
        for name, values in (("weight", weight), ("bias", bias)):
            self.register_buffer(name, None if values is None else values.detach().clone())


class LayerNorm(_Norm):
    """Layer normalisation over the last dimensions."""

    def __init__(
        self,
        shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(weight, bias, eps)
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.shape, self.weight, self.bias, self.eps)


class RmsNorm(_Norm):
    """Division by the root mean square over the last dimensions."""

    def __init__(self, shape: Sequence[int], weight: Tensor | None = None, eps: float = 1e-6) -> None:
        super().__init__(weight, None, eps)
        self.shape = tuple(shape)

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.shape, self.weight, self.eps)


class GroupNorm(_Norm):
    """Normalisation over each of some groups of channels."""

    def __init__(
        self, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> None:
        super().__init__(weight, bias, eps)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        # In channels-last layout, torch sums in an order that depends on the batch size.
        return functional.group_norm(x.contiguous(), self.groups, self.weight, self.bias, self.eps)


class Softmax(Accumulating):
    """Softmax over the last dimension."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class Elementwise(Accumulating):
    """A function of each value that only analog networks need, by its name in `ELEMENTWISE`."""

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        # In double: vector and scalar code differ in the last bit, and the batch decides which is used.
        return ELEMENTWISE[self.function](x.double()).to(x.dtype)


ELEMENTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "square": torch.square,
    "cube": lambda x: x**3,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "exp": torch.exp,
    "relu": torch.relu,
    **{name: function for name, function in FUNCTIONS.items() if name not in PARAMETERS},
}
"""The functions of norms that are written out, and the nonlinearities without parameters."""


class MatMul(Accumulating):
    """The matrix product of two signals over their last two dimensions.

    Of counts it is exact in any order, as long as the sums stay below 2^24: an event of one signal adds a row
    or a column of the other's counts.
    """

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


def count_products(a: Sequence[int], b: Sequence[int]) -> int:
    """The multiplications of a matrix product of two signals of the given shapes."""
    return math.prod(max(pair) for pair in zip(a[:-2], b[:-2], strict=True)) * a[-2] * a[-1] * b[-1]


ANALOG: tuple[type[nn.Module], ...] = (LayerNorm, RmsNorm, GroupNorm, Softmax, Elementwise, MatMul)
"""What only networks have whose signals between the neurons are not linear in events."""
