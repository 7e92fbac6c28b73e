"""A convolution over an image smaller than its kernel, as a dense layer.

Most factors of such a convolution are padding: a 3 × 3 kernel over a 2 × 2 image reads five zeros for every
four pixels.

Letters: C input channels, N output channels, H and W input rows and columns, Y and X output rows and columns.
"""

from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from rheobase.kernels.conv_integrate_fire.problem import Layer
from rheobase.kernels.kept import keep


def flatten_small_image(problem: Layer) -> Layer:
    """Return the same problem, over one pixel of many channels if that takes fewer products."""
    p = problem
    dense = all(x.movedim(-3, -1).is_contiguous() for x in p.written)
    if prod(p.spikes.shape[-2:]) >= prod(p.weight.shape[-2:]) or not dense:
        return p
    pixels = prod(p.out.shape[-2:])
    image = (p.spikes.shape[-2], p.spikes.shape[-1], p.stride, p.padding)

    def repeat(vector: Tensor) -> Tensor:
        return vector.repeat(pixels)

    return replace(
        p,
        spikes=_flatten(p.spikes),
        weight=keep(p.weight, image, lambda: spread_weight(p.weight, *image)),
        bias=None if p.bias is None else repeat(p.bias),
        threshold=p.threshold.expand(len(p.weight), 1, 1).repeat(pixels, 1, 1),
        out=_flatten(p.out),
        stride=(1, 1),
        padding=(0, 0),
        residual=None if p.residual is None else _flatten(p.residual),
        residual_scale=None if p.residual_scale is None else repeat(p.residual_scale),
        **p.own(_flatten, repeat),
    )


def spread_weight(
    weight: Tensor, H: int, W: int, stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Spread a kernel over an image: (N, C, kernel rows, kernel columns) to (Y·X·N, H·W·C, 1, 1)."""
    _, C, rows, columns = weight.shape
    row_YH = _find_taps(H, rows, stride[0], padding[0], weight.device)
    column_XW = _find_taps(W, columns, stride[1], padding[1], weight.device)
    seen_YXHW = (row_YH >= 0)[:, None, :, None] & (column_XW >= 0)[:, None, :]
    tap_YXHW = row_YH[:, None, :, None] * columns + column_XW[:, None, :]
    taps_and_zero = F.pad(weight.flatten(2), (0, 1)).movedim(2, 0)
    spread_YXHWNC = taps_and_zero[tap_YXHW.where(seen_YXHW, rows * columns)]
    return spread_YXHWNC.movedim(4, 2).reshape(-1, H * W * C, 1, 1)


def _flatten(maps: Tensor) -> Tensor:
    """Turn (..., C, H, W) into (..., H·W·C, 1, 1): a view of maps that are channels-last."""
    return maps.movedim(-3, -1).flatten(-3)[..., None, None]


def _find_taps(size: int, kernel: int, stride: int, padding: int, device: torch.device) -> Tensor:
    """Return (outputs, inputs): the tap through which an output sees an input along one axis, or -1."""
    outputs = (size + 2 * padding - kernel) // stride + 1
    first = torch.arange(outputs, device=device) * stride - padding
    tap = torch.arange(size, device=device) - first[:, None]
    return tap.where((tap >= 0) & (tap < kernel), -1)
