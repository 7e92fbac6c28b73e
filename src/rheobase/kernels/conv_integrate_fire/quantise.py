"""A convolution whose output is rounded to counts, as one operation.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

import torch
from torch import Tensor

from rheobase.kernels import backends
from rheobase.kernels.conv_integrate_fire import reference
from rheobase.kernels.conv_integrate_fire.problem import (
    Pair,
    Quantisation,
    allocate,
    as_pair,
    check_problem,
)
from rheobase.kernels.conv_integrate_fire.tiles import Tile
from rheobase.kernels.routines import report_routine

__all__ = ["conv_quantise"]


@torch.no_grad()
def conv_quantise(
    spikes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    threshold: Tensor,
    high: Tensor,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
    out: Tensor | None = None,
    tile: Tile | None = None,
    backend: str = "auto",
) -> Tensor:
    """Convolve counts and round the result z to counts: floor(z/threshold), at least 0, at most `high`.

    The quotient itself is not rounded: where z is below n · threshold, the count is below n. No step depends
    on another. With float weights the order of a sum depends on the backend; with int8 weights every backend
    gives the same counts. No gradient flows through it.

    Args:
        spikes: As in `conv_integrate_fire`: counts up to 127, (T, B, C, H, W).
        weight: As in `conv_integrate_fire`; with int8 weights all other numbers are int32.
        bias: (N,) or None. Half a threshold in it rounds to the nearest count.
        threshold: (N,): what one count stands for, above zero.
        high: (N,): the largest count. For int8 weights (high + 1) · threshold must stay below 2^31.
        stride: As in `conv_integrate_fire`.
        padding: As in `conv_integrate_fire`.
        residual: As in `conv_integrate_fire`.
        residual_scale: As in `conv_integrate_fire`.
        out: Receives the counts: (T, B, N, Y, X), channels-last, uint8, bfloat16, float16 or float32.
        tile: How the fused kernel is cut; chosen for the layer if not given.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

    Returns:
        (T, B, N, Y, X) counts, channels-last: `out` if given, else uint8.

    Raises:
        TypeError: A dtype is not one of those named above.
        ValueError: A shape, device, memory format or backend does not fit.
    """
    name, pairs = backends.choose_backend(spikes.device, backend), (as_pair(stride), as_pair(padding))
    problem = Quantisation(
        spikes=spikes,
        weight=weight,
        bias=bias,
        threshold=threshold[:, None, None],
        out=allocate(spikes, weight, *pairs) if out is None else out,
        stride=pairs[0],
        padding=pairs[1],
        residual=residual,
        residual_scale=residual_scale,
        high=high,
    )
    check_problem(problem)
    if problem.out.numel() == 0:
        return problem.out
    if name == "reference":
        report_routine("reference convolution")
        reference.quantise(problem)
    elif name == "cpu":
        from rheobase.kernels.conv_integrate_fire import cpu

        cpu.quantise(problem)
    else:
        from rheobase.kernels.conv_integrate_fire import triton

        report_routine("triton fused")
        triton.run(problem, tile)
    return problem.out
