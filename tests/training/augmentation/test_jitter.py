"""Colour jitter against Pillow and the standard library, image by image."""

import colorsys

import pytest
import torch
from PIL import Image, ImageEnhance

from rheobase.training.augmentation.jitter import ColourJitter


def pictures(count: int = 6, seed: int = 0) -> torch.Tensor:
    draws = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 5, 4), generator=draws, dtype=torch.uint8)


def draws(count: int) -> torch.Tensor:
    """What the jitter draws for each image: four numbers in [-1, 1)."""
    return 2 * torch.rand(count, 4, generator=torch.Generator().manual_seed(1)) - 1


def jitter(images: torch.Tensor, **strengths: float) -> torch.Tensor:
    nothing = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    return ColourJitter(**nothing | strengths)(images, torch.Generator().manual_seed(1))


def test_no_strength_is_no_change() -> None:
    assert torch.equal(jitter(pictures()), pictures())


@pytest.mark.parametrize(
    ("name", "column", "enhance"),
    [
        ("brightness", 0, ImageEnhance.Brightness),
        ("contrast", 1, ImageEnhance.Contrast),
        ("saturation", 2, ImageEnhance.Color),
    ],
)
def test_blends_are_pillows_up_to_rounding(name: str, column: int, enhance: type) -> None:
    images = pictures()
    ours = jitter(images, **{name: 0.8})
    for image, result, draw in zip(images, ours, draws(len(images)), strict=True):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        theirs = enhance(picture).enhance(1 + 0.8 * draw[column].item())
        expected = torch.tensor(list(theirs.tobytes())).view(5, 4, 3).permute(2, 0, 1)
        assert (result.int() - expected).abs().max() <= 1
    assert not torch.equal(ours, images)


def test_hue_turns_along_the_colour_circle() -> None:
    images = pictures()
    images[0] = 77  # grey has no hue
    ours = jitter(images, hue=0.5)
    for image, result, draw in zip(images, ours, draws(len(images)), strict=True):
        for pixel, turned in zip(image.flatten(1).T, result.flatten(1).T, strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255).tolist())
            expected = colorsys.hsv_to_rgb((hue + 0.5 * draw[3].item()) % 1, saturation, value)
            assert turned.tolist() == pytest.approx([255 * c for c in expected], abs=0.51)


def test_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ColourJitter.*RGB.*uint8"):
        ColourJitter()(pictures().float(), torch.Generator())
