"""A convolution whose output drives integrate-and-fire neurons, as one operation over all steps.

Letters: T steps, B batch, C input channels, N output channels, Y and X output rows and columns.
"""

import torch
from torch import Tensor

from rheobase.kernels import backends
from rheobase.kernels.arguments import check_device, check_dtype, check_reset, check_shape, check_threshold
from rheobase.kernels.conv_integrate_fire import reference
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
    """Name the backend that will run: `"reference"` or `"triton"`.

    Raises:
        ValueError: The backend asked for cannot run; the message says why.
    """
    reason = _explain_no_fusion(threshold, _pair(dilation), groups)
    if backend == "triton" and reason is not None:
        raise ValueError(f"backend 'triton' cannot run: {reason}; use 'auto'")
    name = backends.choose_backend(device, backend, offered=("reference", "triton"))
    return name if reason is None else "reference"


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
    allow_tf32: bool = False,
    tile: Tile | None = None,
    backend: str = "auto",
) -> Tensor:
    """Convolve spikes and run the integrate-and-fire neurons they drive, for T steps.

    Each step adds the convolution of that step's spikes, the bias and the residual to the membrane, fires
    where the potential reaches the threshold, and resets the neurons that fired. With float weights the order
    of the sum is the backend's own; with int8 weights every backend gives the same spikes. No gradient flows
    through it.

    Args:
        spikes: (T, B, C, H, W): uint8 up to 127, or the weight's float dtype. The fused kernel copies spikes
            that are not channels-last.
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
        allow_tf32: Let float32 weights be rounded to ten bits for speed.
        tile: How the fused kernel is cut; chosen for the layer when not given.
        backend: `"auto"`, `"reference"` or `"triton"`; `choose_backend` says what `"auto"` means.

    Returns:
        (T, B, N, Y, X) spikes, 0 or 1, channels-last: `out` when given, else uint8.

    Raises:
        TypeError: A dtype is not one of those named above.
        ValueError: A shape, device, memory format, reset or backend does not fit; nothing has been changed.
    """
    stride, padding, dilation = _pair(stride), _pair(padding), _pair(dilation)
    name = choose_backend(spikes.device, threshold, dilation=dilation, groups=groups, backend=backend)
    check_reset(reset)
    shape = _infer_shape(spikes, weight, stride, padding, dilation, groups)
    _check(shape, spikes, weight, bias, membrane, threshold, residual, residual_scale, out, totals)
    if out is None:
        T, B, N, Y, X = shape
        out = torch.empty(T, B, Y, X, N, dtype=torch.uint8, device=spikes.device).permute(0, 1, 4, 2, 3)
    if out.numel() == 0:
        return out
    vectors = [None if x is None else x.to(membrane.dtype) for x in (residual_scale, bias, threshold)]
    tensors = [spikes, weight, membrane, out, residual, *vectors]
    options = {"strict": strict, "reset": reset, "totals": totals}
    if name == "reference":
        reference.run(*tensors, stride=stride, padding=padding, dilation=dilation, groups=groups, **options)
    else:
        from rheobase.kernels.conv_integrate_fire import triton

        options |= {"precision": "tf32" if allow_tf32 else "ieee", "tile": tile}
        triton.run(*tensors, stride=stride, padding=padding, **options)
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


def _infer_shape(
    spikes: Tensor,
    weight: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
) -> tuple[int, int, int, int, int]:
    """Work out the (T, B, N, Y, X) of the result, and raise ValueError where there is none."""
    if spikes.dim() != 5 or weight.dim() != 4:
        raise ValueError(
            f"spikes has shape {tuple(spikes.shape)} and weight {tuple(weight.shape)}: "
            "expected (T, B, C, H, W) and (N, C / groups, kernel rows, kernel columns)"
        )
    T, B, C, H, W = spikes.shape
    N, _, *kernel = weight.shape
    check_shape("weight", weight, (N, C // groups, *kernel))
    Y, X = (
        (size + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis, size in enumerate((H, W))
    )
    if Y < 1 or X < 1:
        raise ValueError(
            f"a {H} × {W} image is smaller than the {kernel[0]} × {kernel[1]} kernel: add padding"
        )
    return T, B, N, Y, X


def _check(
    shape: tuple[int, int, int, int, int],
    spikes: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    membrane: Tensor,
    threshold: Tensor,
    residual: Tensor | None,
    residual_scale: Tensor | None,
    out: Tensor | None,
    totals: Tensor | None,
) -> None:
    T, B, N, Y, X = shape
    halves = (torch.bfloat16, torch.float16)
    check_dtype("weight", weight, (*halves, torch.float32, torch.int8))
    integer = weight.dtype == torch.int8
    numbers = (torch.int32,) if integer else (*halves, torch.float32, torch.float64)
    check_dtype("spikes", spikes, (torch.uint8,) if integer else (torch.uint8, weight.dtype))
    check_dtype("membrane", membrane, (torch.int32 if integer else torch.float32,))
    check_shape("membrane", membrane, (B, N, Y, X))
    check_dtype("threshold", threshold, numbers)
    check_threshold(threshold, (N, Y, X))
    for label, vector in (("bias", bias), ("residual_scale", residual_scale)):
        if vector is not None:
            check_dtype(label, vector, numbers)
            check_shape(label, vector, (N,))
    if residual is not None:
        check_dtype("residual", residual, (torch.uint8, *numbers[:3]))
        check_shape("residual", residual, shape, (B, N, Y, X))
    elif residual_scale is not None:
        raise ValueError("residual_scale is given without a residual to scale")
    if out is not None:
        check_dtype("out", out, (torch.uint8, *halves, torch.float32))
        check_shape("out", out, shape)
    if totals is not None:
        check_dtype("totals", totals, (torch.int32,))
        check_shape("totals", totals, (T, B))
    check_device(
        membrane.device,
        spikes=spikes,
        weight=weight,
        bias=bias,
        threshold=threshold,
        residual=residual,
        residual_scale=residual_scale,
        out=out,
        totals=totals,
    )
