"""The AutoAugment operations on a whole batch at once, a different one for each image.

Every operation belongs to one of three stages. A batch passes through all of them, and each changes only the
images whose operation belongs to it:

* *lookup*: grey levels are replaced by a table (invert, solarize, posterize, autocontrast, equalize);
* *move*: pixels are resampled, nearest neighbour (shear, translate, rotate);
* *blend*: extrapolation between the image and a poorer version of it (brightness: black, contrast: its mean
  grey, color: its grey version, sharpness: its smoothed version).

An *action* is an operation with its level and sign; `Actions` tabulates them. All arithmetic is integer, or
float in Pillow's order, so results equal Pillow's bit for bit, with two exceptions. A compiler that fuses a
multiplication with the following addition, such as torch's on a GPU, may change a blend or an autocontrast by
one grey level. A translation within 2⁻¹⁷ of half a pixel may round differently, since moves are computed in
steps of 2⁻¹⁶ pixel; no level comes close to that at 32×32.

Shape letters: B batch, C channels, H height, W width, P pixels (H·W), A actions, G grey levels (256).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rheobase.training.augmentation.policy import find_magnitude

FILL = 128
"""The grey level of pixels outside the image."""

Action = tuple[str, int, int]
"""Name, level and sign."""

_BLACK, _MEAN, _GREY, _SMOOTH = range(4)
_POORER = {"brightness": _BLACK, "contrast": _MEAN, "color": _GREY, "sharpness": _SMOOTH}
_STAGES = {
    "nothing": 0,
    **dict.fromkeys(("invert", "solarize", "posterize", "autocontrast", "equalize"), 1),
    **dict.fromkeys(("shear_x", "shear_y", "translate_x", "translate_y", "rotate"), 2),
    **dict.fromkeys(_POORER, 3),
}


@dataclass(frozen=True)
class Actions:
    """The actions as rows of tensors; row 0 does nothing.

    A row holds its stage (0 none, 1 lookup, 2 move, 3 blend), a table of grey levels, whether to apply
    autocontrast or equalize instead, the affine map of a move, and the poorer image and factor of a blend.
    """

    stage: Tensor
    table: Tensor
    autocontrast: Tensor
    equalize: Tensor
    affine: Tensor
    poorer: Tensor
    factor: Tensor

    @classmethod
    def tabulate(cls, actions: Sequence[Action], height: int, width: int, device: torch.device) -> "Actions":
        """Tabulate the actions for images of one size: row i+1 is action i."""
        rows: list[Action] = [("nothing", 0, 1), *actions]
        names = [name for name, _, _ in rows]
        tables = [_find_table(name, level) for name, level, _ in rows]
        affine = [_fix(_find_affine(*row, height, width)) for row in rows]
        factors = [1 + find_magnitude(*row) if row[0] in _POORER else 1.0 for row in rows]
        return cls(
            stage=torch.tensor([_STAGES[name] for name in names], device=device),
            table=torch.tensor(tables, dtype=torch.uint8, device=device),
            autocontrast=torch.tensor([name == "autocontrast" for name in names], device=device),
            equalize=torch.tensor([name == "equalize" for name in names], device=device),
            affine=torch.tensor(affine, dtype=torch.int32, device=device),
            poorer=torch.tensor([_POORER.get(name, _BLACK) for name in names], device=device),
            factor=torch.tensor(factors, dtype=torch.float32, device=device),
        )


def act(images_BCHW: Tensor, actions: Actions, chosen_B: Tensor, *, pick: bool) -> Tensor:
    """Apply to each image its action.

    Args:
        images_BCHW: RGB images, uint8.
        actions: The table of actions.
        chosen_B: One row of `actions` for each image, int64.
        pick: Whether to pass through each stage only the images that need it. This is faster on a CPU, and
            slower on an accelerator, which would have to wait for the selection. The result is the same.
    """
    for stage, transform in enumerate((_look_up, _move, _blend), start=1):
        if pick:
            picked_B = (actions.stage[chosen_B] == stage).nonzero()[:, 0]
            changed_BCHW = transform(images_BCHW[picked_B], actions, chosen_B[picked_B])
            images_BCHW = images_BCHW.index_copy(0, picked_B, changed_BCHW)
        else:
            images_BCHW = transform(images_BCHW, actions, chosen_B)
    return images_BCHW


def sample(images_BCHW: Tensor, y_BHW: Tensor, x_BHW: Tensor, fill: int) -> Tensor:
    """Take for each pixel the one at the given integer position of the same image, or `fill` outside it.

    The positions may have any shape that broadcasts to (B, H, W).
    """
    height, width = images_BCHW.shape[-2:]
    inside_BHW = (y_BHW >= 0) & (y_BHW < height) & (x_BHW >= 0) & (x_BHW < width)
    place_BHW = torch.where(inside_BHW, y_BHW * width + x_BHW, 0).long()
    place_BCP = place_BHW.flatten(1)[:, None].expand(-1, images_BCHW.shape[1], -1)
    moved_BCHW = images_BCHW.flatten(2).gather(2, place_BCP).view_as(images_BCHW)
    return torch.where(inside_BHW[:, None], moved_BCHW, fill)


def _find_table(name: str, level: int) -> list[int]:
    greys = range(256)
    if name == "invert":
        return [255 - grey for grey in greys]
    if name == "solarize":
        return [grey if grey < find_magnitude(name, level) else 255 - grey for grey in greys]
    if name == "posterize":
        dropped = 8 - int(find_magnitude(name, level))
        return [grey >> dropped << dropped for grey in greys]
    return list(greys)


def _find_affine(name: str, level: int, sign: int, height: int, width: int) -> tuple[float, ...]:
    """The six numbers a…f with which output pixel (x, y) shows input pixel (ax+by+c, dx+ey+f)."""
    if name == "shear_x":
        return 1.0, find_magnitude(name, level, sign), 0.0, 0.0, 1.0, 0.0
    if name == "shear_y":
        return 1.0, 0.0, 0.0, find_magnitude(name, level, sign), 1.0, 0.0
    if name == "translate_x":
        return 1.0, 0.0, find_magnitude(name, level, sign) * width, 0.0, 1.0, 0.0
    if name == "translate_y":
        return 1.0, 0.0, 0.0, 0.0, 1.0, find_magnitude(name, level, sign) * height
    if name == "rotate":
        angle = -math.radians(find_magnitude(name, level, sign))
        cos, sin = math.cos(angle), math.sin(angle)
        x, y = width / 2, height / 2
        return cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y
    return 1.0, 0.0, 0.0, 0.0, 1.0, 0.0


def _fix(affine: tuple[float, ...]) -> list[int]:
    """Write an affine map of pixel centres in steps of 2⁻¹⁶, as Pillow does for speed."""
    a, b, c, d, e, f = affine
    centred = (a, b, c + a / 2 + b / 2, d, e, f + d / 2 + e / 2)
    return [math.floor(number * 65536 + 0.5) for number in centred]


def _look_up(images_BCHW: Tensor, actions: Actions, chosen_B: Tensor) -> Tensor:
    grey_BCP = images_BCHW.flatten(2).long()
    count_BCG = torch.zeros(*grey_BCP.shape[:2], 256, dtype=torch.int32, device=grey_BCP.device)
    count_BCG.scatter_add_(2, grey_BCP, torch.ones_like(count_BCG[..., :1]).expand_as(grey_BCP))
    low_BC1, high_BC1 = images_BCHW.flatten(2).aminmax(dim=2, keepdim=True)
    equalized_BCG = _equalize(count_BCG, high_BC1.long())
    stretched_BCG = _autocontrast(low_BC1.long(), high_BC1.long())
    table_BCG = actions.table[chosen_B][:, None]
    table_BCG = torch.where(actions.autocontrast[chosen_B][:, None, None], stretched_BCG, table_BCG)
    table_BCG = torch.where(actions.equalize[chosen_B][:, None, None], equalized_BCG, table_BCG)
    return table_BCG.gather(2, grey_BCP).view_as(images_BCHW)


def _autocontrast(low_BC1: Tensor, high_BC1: Tensor) -> Tensor:
    """Tables that stretch each channel over all grey levels, in the double precision of Python's floats."""
    flat_BC1 = high_BC1 == low_BC1
    range_BC1 = (high_BC1 - low_BC1).double()
    # Two tensors: torch divides a number by a tensor by means of a reciprocal, which rounds twice.
    scale_BC1 = torch.where(flat_BC1, 1.0, torch.full_like(range_BC1, 255.0) / range_BC1)
    offset_BC1 = torch.where(flat_BC1, 0.0, -low_BC1 * scale_BC1)
    grey_G = torch.arange(256, dtype=torch.float64, device=low_BC1.device)
    return (grey_G * scale_BC1).add_(offset_BC1).clamp_(0, 255).to(torch.uint8)


def _equalize(count_BCG: Tensor, high_BC1: Tensor) -> Tensor:
    """Tables that spread the pixels of each channel evenly over the grey levels."""
    below_BCG = count_BCG.cumsum(2, dtype=torch.int32) - count_BCG
    total = count_BCG.sum(2, keepdim=True, dtype=torch.int32)
    step_BC1 = (total - count_BCG.gather(2, high_BC1)) // 255
    divisor_BC1 = step_BC1.clamp(min=1)
    spread_BCG = ((below_BCG + divisor_BC1 // 2) // divisor_BC1).clamp_(max=255).to(torch.uint8)
    same_G = torch.arange(256, dtype=torch.uint8, device=count_BCG.device)
    return torch.where(step_BC1 == 0, same_G, spread_BCG)


def _move(images_BCHW: Tensor, actions: Actions, chosen_B: Tensor) -> Tensor:
    height, width = images_BCHW.shape[-2:]
    a, b, c, d, e, f = actions.affine[chosen_B][:, :, None, None].unbind(1)
    y_H1 = torch.arange(height, dtype=torch.int32, device=images_BCHW.device)[:, None]
    x_W = torch.arange(width, dtype=torch.int32, device=images_BCHW.device)
    x_BHW = (a * x_W + (b * y_H1 + c)) >> 16
    y_BHW = (d * x_W + (e * y_H1 + f)) >> 16
    return sample(images_BCHW, y_BHW, x_BHW, FILL)


def _blend(images_BCHW: Tensor, actions: Actions, chosen_B: Tensor) -> Tensor:
    kind_B111 = actions.poorer[chosen_B][:, None, None, None]
    factor_B111 = actions.factor[chosen_B][:, None, None, None]
    grey_B1HW = _to_grey(images_BCHW)
    mean_B111 = _find_mean(grey_B1HW)
    flat_B111 = torch.where(kind_B111 == _MEAN, mean_B111, 0).to(torch.uint8)
    poorer_BCHW = torch.where(kind_B111 == _GREY, grey_B1HW, flat_B111)
    poorer_BCHW = torch.where(kind_B111 == _SMOOTH, _smooth(images_BCHW), poorer_BCHW).float()
    return (images_BCHW - poorer_BCHW).mul_(factor_B111).add_(poorer_BCHW).clamp_(0, 255).to(torch.uint8)


def _to_grey(images_BCHW: Tensor) -> Tensor:
    """Luma by the weights of ITU-R 601, in steps of 2⁻¹⁶."""
    red, green, blue = images_BCHW.int().unbind(1)
    luma_BHW: Tensor = (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16
    return luma_BHW[:, None].to(torch.uint8)


def _find_mean(grey_B1HW: Tensor) -> Tensor:
    pixels = grey_B1HW.shape[-1] * grey_B1HW.shape[-2]
    return (2 * grey_B1HW.sum((1, 2, 3), keepdim=True) + pixels) // (2 * pixels)


def _smooth(images_BCHW: Tensor) -> Tensor:
    """Average each inner pixel with its eight neighbours, itself weighing five; the border stays."""
    wide = images_BCHW.short()
    rows = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * wide[..., 1:-1, 1:-1]
    smooth_BCHW = images_BCHW.clone()
    smooth_BCHW[..., 1:-1, 1:-1] = (total.float() / 13 + 0.5).to(torch.uint8)
    return smooth_BCHW
