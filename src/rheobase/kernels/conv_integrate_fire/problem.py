"""The arguments of a fused convolution, checked.

Letters: T steps, B batch, C input channels, N output channels, H and W input rows and columns, Y and X output
rows and columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from rheobase.kernels.checks import (
    check_counts,
    check_device,
    check_dtype,
    check_reset,
    check_shape,
    check_threshold,
)

Pair = int | tuple[int, int]
Reshape = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """The arguments that all fused convolutions share, with sizes as pairs and `out` present."""

    spikes: Tensor
    weight: Tensor
    bias: Tensor | None
    threshold: Tensor
    out: Tensor
    stride: tuple[int, int]
    padding: tuple[int, int]
    residual: Tensor | None
    residual_scale: Tensor | None
    second: Tensor | None = None

    @property
    def integer(self) -> bool:
        """Whether it is computed in integers."""
        return self.weight.dtype == torch.int8

    @property
    def number(self) -> torch.dtype:
        """The dtype of potentials."""
        return torch.int32 if self.integer else torch.float32

    @property
    def written(self) -> list[Tensor]:
        """The tensors that are overwritten, (..., N, Y, X)."""
        return [self.out]

    def vector(self, values: Tensor | None, default: int) -> Tensor:
        """One number for each output channel."""
        N = len(self.weight)
        if values is None:
            return self.weight.new_full((N,), default, dtype=self.number)
        return values.to(self.number).flatten().expand(N).contiguous()

    def own(self, maps: Reshape, vector: Reshape) -> dict[str, Tensor]:
        """The further arguments with one value per neuron or channel, reshaped by one of two functions."""
        return {}


Layer = TypeVar("Layer", bound=Convolution)


@dataclass(frozen=True, kw_only=True)
class Problem(Convolution):
    """The arguments of `conv_integrate_fire`."""

    membrane: Tensor
    totals: Tensor | None = None
    reached: Tensor | None = None
    fan_out: Tensor | None = None
    strict: bool
    reset: str
    binary: bool = False

    @property
    def written(self) -> list[Tensor]:
        return [self.out, self.membrane]

    def own(self, maps: Reshape, vector: Reshape) -> dict[str, Tensor]:
        fan_out = {} if self.fan_out is None else {"fan_out": maps(self.fan_out)}
        return {"membrane": maps(self.membrane)} | fan_out


@dataclass(frozen=True, kw_only=True)
class Quantisation(Convolution):
    """The arguments of `conv_quantise`."""

    high: Tensor

    def own(self, maps: Reshape, vector: Reshape) -> dict[str, Tensor]:
        return {"high": vector(self.high)}


def infer_shape(
    spikes: Tensor,
    weight: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    second: Tensor | None,
) -> tuple[int, int, int, int, int]:
    """Infer the (T, B, N, Y, X) of the result, and raise ValueError if there is none."""
    if spikes.dim() != 5 or weight.dim() != 4:
        raise ValueError(
            f"spikes has shape {tuple(spikes.shape)} and weight {tuple(weight.shape)}: "
            "expected (T, B, C, H, W) and (N, C, kernel rows, kernel columns)"
        )
    if second is not None and second.dim() not in (4, 5):
        raise ValueError(f"second has shape {tuple(second.shape)}: expected (T, B, C, H, W) or (B, C, H, W)")
    T, B, C, H, W = spikes.shape
    N, _, rows, columns = weight.shape
    check_shape("weight", weight, (N, C if second is None else C + second.shape[-3], rows, columns))
    Y = (H + 2 * padding[0] - rows) // stride[0] + 1
    X = (W + 2 * padding[1] - columns) // stride[1] + 1
    if Y < 1 or X < 1:
        raise ValueError(f"a {H} × {W} image is smaller than the {rows} × {columns} kernel: add padding")
    return T, B, N, Y, X


def allocate(
    spikes: Tensor,
    weight: Tensor,
    stride: tuple[int, int],
    padding: tuple[int, int],
    second: Tensor | None = None,
) -> Tensor:
    """Allocate the result, channels-last."""
    T, B, N, Y, X = infer_shape(spikes, weight, stride, padding, second)
    return torch.empty(T, B, Y, X, N, dtype=torch.uint8, device=spikes.device).permute(0, 1, 4, 2, 3)


def is_channels_last(maps: Tensor) -> bool:
    """Whether the images of (T, B, C, H, W) are channels-last in memory."""
    return maps[0, 0].movedim(0, -1).is_contiguous()


def as_pair(size: Pair) -> tuple[int, int]:
    """A size for rows and columns."""
    return (size, size) if isinstance(size, int) else size


def check_problem(problem: Convolution) -> None:
    """Raise TypeError or ValueError for the first argument that does not fit the others."""
    spikes, weight, second = problem.spikes, problem.weight, problem.second
    shape = T, B, N, Y, X = infer_shape(spikes, weight, problem.stride, problem.padding, second)
    halves = (torch.bfloat16, torch.float16)
    check_dtype("weight", weight, (*halves, torch.float32, torch.int8))
    numbers = (torch.int32,) if problem.integer else (*halves, torch.float32, torch.float64)
    single = (torch.float16,) if weight.dtype == torch.float32 else ()
    check_dtype("spikes", spikes, (torch.uint8,) if problem.integer else (torch.uint8, weight.dtype, *single))
    if second is not None:
        image = (second.shape[-3], *spikes.shape[-2:])
        check_dtype("second", second, (spikes.dtype,))
        check_shape("second", second, (T, B, *image), (B, *image))
    if isinstance(problem, Problem):
        check_reset(problem.reset)
        check_dtype("membrane", problem.membrane, (problem.number,))
        check_shape("membrane", problem.membrane, (B, N, Y, X))
        check_counts(problem.totals, problem.reached, problem.fan_out, shape)
    if isinstance(problem, Quantisation):
        check_dtype("high", problem.high, numbers)
        check_shape("high", problem.high, (N,))
    check_dtype("threshold", problem.threshold, numbers)
    check_threshold(problem.threshold, (N, Y, X))
    for label, vector in (("bias", problem.bias), ("residual_scale", problem.residual_scale)):
        if vector is not None:
            check_dtype(label, vector, numbers)
            check_shape(label, vector, (N,))
    if problem.residual is not None:
        check_dtype("residual", problem.residual, (torch.uint8, *numbers[:3]))
        check_shape("residual", problem.residual, shape, (B, N, Y, X))
    elif problem.residual_scale is not None:
        raise ValueError("residual_scale is given without a residual to scale")
    check_dtype("out", problem.out, (torch.uint8, *halves, torch.float32))
    check_shape("out", problem.out, shape)
    tensors = {label: value for label, value in vars(problem).items() if isinstance(value, Tensor)}
    check_device(problem.out.device, **tensors)
