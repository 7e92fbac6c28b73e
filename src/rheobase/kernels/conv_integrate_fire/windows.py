"""The sizes of a convolution and of its windows, which programs for a CPU are compiled for.

Letters: C input channels, N output channels, H and W input rows and columns, Y and X output rows and columns.
"""

from dataclasses import dataclass

from rheobase.kernels.conv_integrate_fire.packing import count_wide
from rheobase.kernels.conv_integrate_fire.problem import Problem


@dataclass(frozen=True)
class Windows:
    """The sizes.

    Attributes:
        wide: The number of leading input channels that more than the middle tap sees.
    """

    C: int
    H: int
    W: int
    N: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    wide: int

    @classmethod
    def of(cls, p: Problem) -> "Windows":
        """Those of a problem, with sixteen channels to a word."""
        C, H, W = p.spikes.shape[2:]
        N, _, down, right = p.weight.shape
        wide = -(-count_wide(p.weight) // 16) * 16
        return Windows(C, H, W, N, (down, right), p.stride, p.padding, wide)

    @property
    def size(self) -> tuple[int, int]:
        """Y and X."""
        sides = zip((self.H, self.W), self.padding, self.kernel, self.stride, strict=True)
        Y, X = ((side + 2 * border - reach) // stride + 1 for side, border, reach, stride in sides)
        return Y, X
