"""From the sum of a neuron's currents to the count that it asks for."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.kernels.backends import widest_float

COMPILED = {"linear": False, "relu": True, "gelu": False}
"""The functions that compiled kernels have, and whether with a parameter too."""


@dataclass(frozen=True)
class Rounding:
    """floor(f(z)/quantum + start), clipped to low … high, for z a sum or scale · sum + bias.

    Attributes:
        quantum: Broadcasts against samples, as parameter, scale and bias do.
        start: The fraction of a quantum that is added.
        low: The smallest count.
        high: The largest count.
        name: What f is called.
        function: f, of sums and the parameter if there is one.
        exact: Whether f is computed without rounding. Others are computed in double precision: a library's
            vector and scalar code differ in the last bit of single precision, and the batch decides which of
            them computes a value.
        parameter: What f needs besides a sum.
        scale: What one of the sums stands for, if they are integers.
        bias: Added to scaled sums.
    """

    quantum: Tensor
    start: float
    low: int
    high: int
    name: str
    function: Callable[..., Tensor]
    exact: bool
    parameter: Tensor | None = None
    scale: Tensor | None = None
    bias: Tensor | None = None

    @property
    def compiled(self) -> bool:
        """Whether compiled kernels compute it."""
        known = self.name in COMPILED and (self.parameter is None or COMPILED[self.name])
        return known and self.quantum.dtype == torch.float32

    def __call__(self, z: Tensor) -> Tensor:
        """The targets of sums (B, ...), in the precision of the quantum."""
        precision = self.quantum.dtype
        if self.scale is not None:
            z = z.to(precision) * self.scale
        if self.bias is not None:
            z = z + self.bias
        z = z if self.exact else z.to(widest_float(z.device))
        value = self.function(z, *(x.to(z.dtype) for x in (self.parameter,) if x is not None))
        start = torch.full_like(self.quantum, self.start, dtype=value.dtype)
        count = torch.addcdiv(start, value, self.quantum.to(value.dtype)).floor_()
        return count.clamp_(self.low, self.high).to(precision)
