"""Batch norm in training with what follows it: a sum and a clip, in one function with its gradients.

Letters: B batch, C channels, `...` pixels.
"""

import torch
from torch import Tensor

from rheobase.kernels.backends import choose_backend
from rheobase.kernels.checks import check_device, check_dtype, check_shape
from rheobase.kernels.norm_clip import reference
from rheobase.kernels.norm_clip.statistics import Statistics

__all__ = ["Statistics", "norm_clip"]


def norm_clip(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: Statistics,
    *,
    added: Tensor | None = None,
    offset: Tensor | None = None,
    threshold: Tensor | None = None,
    levels: int = 0,
    rectify: bool = True,
    backend: str = "auto",
) -> Tensor:
    """Normalise a batch by its mean and variance, add a second input, and clip: differentiable.

    z = weight · (x − mean) / √(variance + ε) + bias + added, and the result is min(max(z, 0), θ).

    Args:
        x: (B, C, ...) float32, bfloat16 or float16. All arithmetic is float32, the result has the dtype of x.
        weight: (C,) float32.
        bias: (C,) float32.
        statistics: What is kept over batches.
        added: The second input, of the shape of x.
        offset: (C,) float32: what the layer before would have added to x. It changes the mean and nothing
            else, so that its gradient is zero.
        threshold: () float32, θ; without it there is no upper bound.
        levels: If above zero, the result is rounded to the nearest of as many multiples of θ/levels, halves
            up, and θ is at least 10⁻³; the gradients are those of `QuantisedClip`.
        rectify: Whether there is a clip at all; without it the result is z.
        backend: `"auto"`, `"reference"` or `"triton"`.

    Raises:
        TypeError: A dtype is not one of those named above.
        ValueError: A shape, device or setting does not fit.
    """
    name = choose_backend(x.device, backend, offered=("reference", "triton"))
    check_dtype("x", x, (torch.float32, torch.bfloat16, torch.float16))
    channels = (x.shape[1],)
    vectors = {"weight": weight, "bias": bias, "statistics.mean": statistics.mean}
    vectors |= {"statistics.variance": statistics.variance} | ({} if offset is None else {"offset": offset})
    for label, vector in vectors.items():
        check_dtype(label, vector, (torch.float32,))
        check_shape(label, vector, channels)
    if added is not None:
        check_shape("added", added, tuple(x.shape))
    if threshold is None and levels:
        raise ValueError(f"{levels} levels need a threshold")
    if threshold is not None and not rectify:
        raise ValueError("a threshold needs a clip: leave rectify on")
    if x.numel() <= x.shape[1]:
        raise ValueError(f"a batch norm needs more than one value per channel to train, got {tuple(x.shape)}")
    check_dtype("statistics.counters", statistics.counters, (torch.int32,))
    check_shape("statistics.counters", statistics.counters, (x.shape[1] + 1,))
    if threshold is not None:
        check_dtype("threshold", threshold, (torch.float32,))
        check_shape("threshold", threshold, ())
    check_device(x.device, **vectors, added=added, threshold=threshold, batches=statistics.batches)
    given = (x, weight, bias, statistics, added, offset, threshold, levels, rectify)
    if name == "reference":
        return reference.run(*given)
    from rheobase.kernels.norm_clip import triton

    return triton.run(*given)
