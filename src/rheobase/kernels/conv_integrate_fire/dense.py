"""A convolution over an image smaller than its kernel, as the dense layer it is.

Most of what such a convolution multiplies is padding: a 3 × 3 kernel over a 2 × 2 image meets five zeros for
every four pixels.

Letters: C input channels, N output channels, H and W input rows and columns, Y and X output rows and columns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def flatten_image(maps: Tensor) -> Tensor:
    """Turn (..., C, H, W) maps into (..., H·W·C, 1, 1) features; a view of channels-last maps."""
    return maps.movedim(-3, -1).flatten(-3)[..., None, None]


def spread_weight(
    weight: Tensor, image: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Spread a kernel over an image: (N, C, kernel rows, kernel columns) to (Y·X·N, H·W·C, 1, 1)."""
    (H, W), (rows, columns) = image, weight.shape[2:]
    row_YH = _taps(H, rows, stride[0], padding[0], weight.device)
    column_XW = _taps(W, columns, stride[1], padding[1], weight.device)
    seen_YXHW = (row_YH >= 0)[:, None, :, None] & (column_XW >= 0)[None, :, None, :]
    tap_YXHW = (row_YH[:, None, :, None] * columns + column_XW[None, :, None, :]).where(seen_YXHW, rows * columns)
    with_zero = F.pad(weight.flatten(2), (0, 1))
    spread = with_zero.permute(2, 0, 1)[tap_YXHW]  # (Y, X, H, W, N, C)
    return spread.permute(0, 1, 4, 2, 3, 5).reshape(-1, H * W * weight.shape[1], 1, 1)


def _taps(size: int, kernel: int, stride: int, padding: int, device: torch.device) -> Tensor:
    """Return (outputs, inputs): the tap through which an output sees an input along one axis, or -1."""
    outputs = (size + 2 * padding - kernel) // stride + 1
    first = torch.arange(outputs, device=device) * stride - padding
    tap = torch.arange(size, device=device) - first[:, None]
    return tap.where((tap >= 0) & (tap < kernel), -1)
