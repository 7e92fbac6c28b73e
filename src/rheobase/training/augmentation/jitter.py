"""Random changes of colour, different for each image.

Shape letters: B batch, C channels (red, green, blue), H height, W width.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from rheobase.training.augmentation.transforms import require_rgb

_LUMA = (0.299, 0.587, 0.114)  # ITU-R 601


@dataclass(frozen=True)
class ColourJitter:
    """Change brightness, contrast, saturation and hue of each image, in this order.

    The first three are blends, x' = p + f·(x − p), of the image with black, with its mean grey and with
    its grey version, with f drawn from [1−s, 1+s] for each strength s. The hue is rotated by a fraction of
    the colour circle drawn from [−s, s].
    """

    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2
    hue: float = 0.1

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Jitter RGB images (B, 3, H, W) of uint8."""
        require_rgb(images, "ColourJitter")
        draws = torch.rand(len(images), 4, generator=generator, dtype=torch.float32, device=images.device)
        strengths = draws.new_tensor([self.brightness, self.contrast, self.saturation, self.hue])
        brighter, starker, richer, turn = ((2 * draws - 1) * strengths)[..., None, None, None].unbind(1)
        x_BCHW = images.float()
        x_BCHW = _blend(x_BCHW, torch.zeros_like(brighter), brighter)
        x_BCHW = _blend(x_BCHW, _to_grey(x_BCHW).mean((1, 2, 3), keepdim=True), starker)
        x_BCHW = _blend(x_BCHW, _to_grey(x_BCHW), richer)
        return _turn_hue(x_BCHW, turn).round_().to(torch.uint8)


def _blend(x_BCHW: Tensor, poorer: Tensor, more_B111: Tensor) -> Tensor:
    return (x_BCHW + more_B111 * (x_BCHW - poorer)).clamp_(0, 255)


def _to_grey(x_BCHW: Tensor) -> Tensor:
    weights_C11 = x_BCHW.new_tensor(_LUMA)[:, None, None]
    return (x_BCHW * weights_C11).sum(1, keepdim=True)


def _turn_hue(x_BCHW: Tensor, turn_B111: Tensor) -> Tensor:
    """Rotate the hue, keeping the largest and the smallest value of each pixel."""
    red, green, blue = (x_BCHW[:, channel, None] for channel in range(3))
    low_B1HW, high_B1HW = x_BCHW.aminmax(dim=1, keepdim=True)
    range_B1HW = high_B1HW - low_B1HW
    unit_B1HW = range_B1HW.clamp(min=1e-6)  # grey has no hue
    hue_B1HW = torch.where(high_B1HW == blue, (red - green) / unit_B1HW + 4, 0)
    hue_B1HW = torch.where(high_B1HW == green, (blue - red) / unit_B1HW + 2, hue_B1HW)
    hue_B1HW = torch.where(high_B1HW == red, (green - blue) / unit_B1HW, hue_B1HW)
    hue_B1HW = hue_B1HW + 6 * turn_B111
    # The position of each channel's peak on the circle, in sixths.
    offset_C11 = x_BCHW.new_tensor([5.0, 3.0, 1.0])[:, None, None]
    place_BCHW = (offset_C11 + hue_B1HW) % 6
    return high_B1HW - range_B1HW * torch.minimum(place_BCHW, 4 - place_BCHW).clamp_(0, 1)
