"""Decode and scale pictures with Pillow."""

import io
import math
import random
from abc import ABC, abstractmethod
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from PIL.Image import Image

_GREY = ("1", "L", "LA", "La")
_NARROWEST, _WIDEST = 3 / 4, 4 / 3


class Pictures(ABC):
    """The pictures of one split, decoded one by one.

    Attributes:
        classes: The names of the classes.
        labels: The class of each picture.
    """

    classes: tuple[str, ...]
    labels: list[int]

    @abstractmethod
    def decode(self, index: int) -> "Image":
        """Read one picture as RGB."""

    @abstractmethod
    def shuffle(self, generator: torch.Generator) -> list[int]:
        """A random order in which the pictures can be read fast."""


def permute(count: int, generator: torch.Generator) -> list[int]:
    """The integers below `count` in random order."""
    order: list[int] = torch.randperm(count, generator=generator, device=generator.device).tolist()
    return order


def require_pillow() -> ModuleType:
    """Import Pillow's Image module."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading pictures needs Pillow: pip install pillow") from error
    return Image


def decode(picture: str | bytes, keep_grey: bool = False, name: str | None = None) -> "Image":
    """Read a picture of 8 bits per channel as RGB.

    Args:
        picture: The path of a file, or its content.
        keep_grey: Whether a grey picture stays grey.
        name: Its name in error messages, by default its path.
    """
    pillow = require_pillow()
    try:
        with pillow.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture) as found:
            if found.mode.startswith(("I", "F")):
                raise ValueError(
                    f"it has more than 8 bits per channel (mode {found.mode}); save it with 8 bits"
                )
            if found.mode == "P" and "transparency" in found.info:
                found = found.convert("RGBA")
            plain: Image = found.convert("L" if keep_grey and found.mode in _GREY else "RGB")
            return plain
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{picture!s:.200} is gone, or a link to a file that is gone: restore the file or remove the link"
        ) from error
    except Exception as error:  # Pillow's decoders may raise anything
        raise ValueError(f"{name or picture!s:.200} cannot be read as a picture: {error}") from error


def fit(picture: "Image", shorter: int, size: int) -> "Image":
    """Scale the shorter side to ``shorter`` pixels and keep the square of ``size`` in the centre."""
    factor = shorter / min(picture.size)
    width, height = (max(shorter, round(side * factor)) for side in picture.size)
    left, top = (width - size) // 2, (height - size) // 2
    scaled = picture.resize((width, height), require_pillow().Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def crop_at_random(picture: "Image", size: int, rng: random.Random) -> "Image":
    """Scale a random part (8 % to 100 % of the area, 3:4 to 4:3) to a square; flip with probability 1/2."""
    pillow = require_pillow()
    square = picture.crop(_draw_box(*picture.size, rng)).resize((size, size), pillow.Resampling.BILINEAR)
    return square.transpose(pillow.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else square


def to_pixels(picture: "Image") -> npt.NDArray[np.uint8]:
    """Copy the pixels out as uint8 (channels, height, width)."""
    pixels: npt.NDArray[Any] = np.asarray(picture)
    channels_first = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return channels_first.copy()


def _draw_box(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1)
        ratio = math.exp(rng.uniform(math.log(_NARROWEST), math.log(_WIDEST)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    # Too long for any such part: the largest centred one of an allowed shape.
    w, h = min(width, round(height * _WIDEST)), min(height, round(width / _NARROWEST))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
