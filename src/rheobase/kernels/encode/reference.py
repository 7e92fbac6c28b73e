"""The definition of counts that follow sums of currents."""

from torch import Tensor

from rheobase.kernels.encode.rounding import Rounding
from rheobase.kernels.follow import follow


def run(
    current: Tensor,
    count: Tensor,
    rounding: Rounding,
    sizes: int | None,
    out: Tensor,
    fan_out: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Round and follow, as `encode` says."""
    if len(current) and current.stride(0) == 0:  # the same at every step
        target = rounding(current[0]).expand(out.shape)
    else:
        target = out
        for t in range(len(out)):
            out[t] = rounding(current[t])
    return follow(target, count, sizes=sizes, out=out, fan_out=fan_out)
