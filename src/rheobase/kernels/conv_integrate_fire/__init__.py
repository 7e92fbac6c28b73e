"""A convolution whose output drives integrate-and-fire neurons, as one operation over all steps.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

import torch
from torch import Tensor

from rheobase.kernels import backends
from rheobase.kernels.conv_integrate_fire import reference
from rheobase.kernels.conv_integrate_fire.problem import Problem, check_problem, infer_shape
from rheobase.kernels.conv_integrate_fire.tiles import Tile

__all__ = ["choose_backend", "conv_integrate_fire"]

Pair = int | tuple[int, int]


def choose_backend(
    device: torch.device | str,
    threshold: Tensor,
    *,
    dilation: Pair = 1,
    groups: int = 1,
    backend: str = "auto",
) -> str:
    """Name the backend that will run: `"reference"`, `"cpu"` or `"triton"`.

    Raises:
        ValueError: The backend asked for cannot run; the message says why.
    """
    reason = _explain_no_fusion(threshold, _pair(dilation), groups)
    if backend == "triton" and reason is not None:
        raise ValueError(f"backend 'triton' cannot run: {reason}; use 'auto'")
    name = backends.choose_backend(device, backend)
    return "reference" if name == "triton" and reason is not None else name


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
    dilation: Pair = 1,
    groups: int = 1,
    residual: Tensor | None = None,
    residual_scale: Tensor | None = None,
    strict: bool = False,
    reset: str = "subtract",
    out: Tensor | None = None,
    totals: Tensor | None = None,
    tile: Tile | None = None,
    backend: str = "auto",
) -> Tensor:
    """Convolve spikes and run the integrate-and-fire neurons they drive, for T steps.

    Each step adds the convolution of that step's spikes, the bias and the residual to the membrane, fires
    where the potential reaches the threshold, and resets the neurons that fired. With float weights the order
    of the sum is the backend's own; with int8 weights every backend gives the same spikes. No gradient flows
    through it.

    Args:
        spikes: (T, B, C, H, W): uint8 up to 127, the weight's float dtype, or float16 for float32 weights.
            The fused kernel copies spikes that are not channels-last.
        weight: (N, C / groups, kernel rows, kernel columns): bfloat16, float16 or float32 with a float32
            membrane; int8 with an int32 membrane, bias, threshold and scale.
        bias: (N,) or none.
        membrane: (B, N, Y, X), channels-last. Updated in place to the potential after the last step, so that
            calls over consecutive chunks of time chain.
        threshold: Broadcastable to (N, Y, X). The dtype's largest value silences a neuron.
        stride: As in `torch.nn.functional.conv2d`.
        padding: Likewise.
        dilation: Likewise. Only the reference runs one other than 1.
        groups: Likewise. Only the reference runs more than 1.
        residual: Added to the current: (T, B, N, Y, X), or (B, N, Y, X) for the same every step. A float
            dtype no wider than the membrane, an integer one for an int32 membrane, or uint8.
        residual_scale: (N,) factors on the residual, such as the amplitude of residual spikes.
        strict: Fire where the potential exceeds the threshold, instead of where it reaches it.
        reset: `"subtract"` takes the threshold off a neuron that fired; `"zero"` sets its potential to zero.
        out: Spikes of an earlier call, to be overwritten: (T, B, N, Y, X), channels-last, uint8, bfloat16,
            float16 or float32.
        totals: (T, B) int32, increased by the number of spikes of each sample at each step.
        tile: How the fused kernel is cut; chosen for the layer when not given.
        backend: `"auto"`, `"reference"`, `"cpu"` or `"triton"`; `choose_backend` says what `"auto"` means.

    Returns:
        (T, B, N, Y, X) spikes, 0 or 1, channels-last: `out` when given, else uint8.

    Raises:
        TypeError: A dtype is not one of those named above.
        ValueError: A shape, device, memory format, reset or backend does not fit; nothing has been changed.
    """
    pairs = _pair(stride), _pair(padding), _pair(dilation)
    name = choose_backend(spikes.device, threshold, dilation=dilation, groups=groups, backend=backend)
    if out is None:
        T, B, N, Y, X = infer_shape(spikes, weight, *pairs, groups)
        out = torch.empty(T, B, Y, X, N, dtype=torch.uint8, device=spikes.device).permute(0, 1, 4, 2, 3)
    layer = (spikes, weight, bias, membrane, threshold, out, *pairs, groups)
    problem = Problem(*layer, residual, residual_scale, totals, strict, reset)
    check_problem(problem)
    if out.numel() == 0:
        return out
    if name == "reference":
        reference.run(problem)
    elif name == "cpu":
        from rheobase.kernels.conv_integrate_fire import cpu

        cpu.run(problem)
    else:
        from rheobase.kernels.conv_integrate_fire import triton

        triton.run(problem, tile)
    return out


def _pair(size: Pair) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _explain_no_fusion(threshold: Tensor, dilation: tuple[int, int], groups: int) -> str | None:
    """Say why the fused kernel cannot run, or return None when it can."""
    if groups != 1:
        return f"the convolution has {groups} groups"
    if dilation != (1, 1):
        return f"the convolution has dilation {dilation}"
    if any(size != 1 for size in threshold.shape[-2:]):
        return f"the threshold has shape {tuple(threshold.shape)}, which is not one value per channel"
    return None
