"""A convolution whose output drives integrate-and-fire neurons, as one operation over all steps.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

import torch
from torch import Tensor

from rheobase.kernels import backends
from rheobase.kernels.conv_integrate_fire import reference
from rheobase.kernels.conv_integrate_fire.problem import Pair, Problem, allocate, as_pair, check_problem
from rheobase.kernels.conv_integrate_fire.second import join
from rheobase.kernels.conv_integrate_fire.tiles import Tile
from rheobase.kernels.routines import report_routine

__all__ = ["conv_integrate_fire"]


@torch.no_grad()
def conv_integrate_fire(
    spikes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    membrane: Tensor,
    threshold: Tensor,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    second: Tensor | None = None,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
    strict: bool = False,
    reset: str = "subtract",
    out: Tensor | None = None,
    totals: Tensor | None = None,
    reached: Tensor | None = None,
    fan_out: Tensor | None = None,
    binary: bool = False,
    tile: Tile | None = None,
    backend: str = "auto",
) -> Tensor:
    """Convolve spikes and run the integrate-and-fire neurons they drive, for T steps.

    Each step adds the convolution of that step's spikes, the bias and the residual to the membrane, fires
    where the potential reaches the threshold, and resets the neurons that fired. With float weights the order
    of the sum depends on the backend; with int8 weights every backend gives the same spikes. No gradient
    flows through it.

    Args:
        spikes: (T, B, C, H, W): uint8 up to 127, the weight's float dtype, or float16 for float32 weights.
            The fused kernel copies spikes that are not channels-last.
        weight: (N, C, kernel rows, kernel columns): bfloat16, float16 or float32 with a float32 membrane;
            int8 with an int32 membrane, bias, threshold and scale. C is that of both inputs if there are two.
        bias: (N,) or None.
        membrane: (B, N, Y, X), channels-last. Updated in place to the potential after the last step, so that
            calls over consecutive chunks of time chain.
        threshold: Broadcastable to (N, Y, X); for Triton one value per channel. The dtype's largest value
            silences a neuron.
        stride: As in `torch.nn.functional.conv2d`.
        padding: As in `torch.nn.functional.conv2d`, a number.
        second: Spikes of further input channels, which come behind those of `spikes`, in the same dtype:
            (T, B, C, H, W), or (B, C, H, W) for the same at every step. The fused kernel reads many where
            they are, such as every other pixel of channels-last ones, and copies the others.
        residual: Added to the current: (T, B, N, Y, X), or (B, N, Y, X) for the same at every step. A float
            dtype no wider than the membrane, an integer one for an int32 membrane, or uint8.
        residual_scale: (N,) factors on the residual, such as the amplitude of residual spikes.
        strict: Fire where the potential exceeds the threshold, instead of where it reaches it.
        reset: `"subtract"` subtracts the threshold from a neuron that fired; `"zero"` sets its potential to
            zero.
        out: Spikes of an earlier call, to be overwritten: (T, B, N, Y, X), channels-last, uint8, bfloat16,
            float16 or float32.
        totals: (T, B) int32, increased by the number of spikes of each sample at each step.
        reached: (T, B) int64, increased by the number of synapses that these spikes reach.
        fan_out: (N, Y, X): the number of synapses behind each neuron; integers.
        binary: Whether spikes, and a residual of bytes, are known to be 0 or 1. Otherwise some routines look.
        tile: How the fused kernel is cut; chosen for the layer if not given.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`.

    Returns:
        (T, B, N, Y, X) spikes, 0 or 1, channels-last: `out` if given, else uint8.

    Raises:
        TypeError: A dtype is not one of those named above.
        ValueError: A shape, device, memory format, reset or backend does not fit; nothing has been changed.
    """
    pairs = as_pair(stride), as_pair(padding)
    name = backends.choose_backend(spikes.device, backend)
    if name == "triton" and any(size != 1 for size in threshold.shape[-2:]):
        raise ValueError(
            f"threshold has shape {tuple(threshold.shape)}: the Triton kernel needs one value per channel, "
            "(N, 1, 1); use backend='reference'"
        )
    if out is None:
        out = allocate(spikes, weight, *pairs, second)
    problem = Problem(
        spikes=spikes,
        weight=weight,
        bias=bias,
        threshold=threshold,
        out=out,
        stride=pairs[0],
        padding=pairs[1],
        second=second,
        residual=residual,
        residual_scale=residual_scale,
        membrane=membrane,
        totals=totals,
        reached=reached,
        fan_out=fan_out,
        strict=strict,
        reset=reset,
        binary=binary,
    )
    check_problem(problem)
    if out.numel() == 0:
        return out
    if name == "triton":
        from rheobase.kernels.conv_integrate_fire import triton

        report_routine("triton fused")
        triton.run(problem, tile)
        return out
    if name == "reference":
        report_routine("reference convolution and scan")
        reference.run(join(problem))
    else:
        from rheobase.kernels.conv_integrate_fire import cpu

        cpu.run(join(problem))
    if reached is not None and fan_out is not None:
        fired_TBN = out.flatten(2).ne(0).double()
        reached += (fired_TBN @ fan_out.flatten().to(fired_TBN)).round().long()
    return out
