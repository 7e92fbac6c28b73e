"""Augmentation of whole batches on any device, reproducible from a seed."""

from dataclasses import dataclass

from torch import Generator, Tensor

from rheobase.training.augmentation.jitter import ColourJitter
from rheobase.training.augmentation.transforms import (
    AutoAugment,
    Cutout,
    Flip,
    Normalise,
    RandomCrop,
    Transform,
)

__all__ = [
    "Augmentation",
    "AutoAugment",
    "ColourJitter",
    "Cutout",
    "Flip",
    "Normalise",
    "RandomCrop",
    "Transform",
]


@dataclass(frozen=True)
class Augmentation:
    """Transforms, one after the other.

    On an accelerator, call it with as many images as memory allows: a small batch takes almost as long as a
    large one.
    """

    transforms: tuple[Transform, ...]

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Augment a batch (B, C, H, W) with a generator on the same device."""
        for transform in self.transforms:
            images = transform(images, generator)
        return images
