"""Augmentation of whole batches on any device: as fast as the device, and repeatable from a seed."""

from dataclasses import dataclass

from torch import Generator, Tensor

from rheobase.training.augmentation.policy import CIFAR10_POLICY
from rheobase.training.augmentation.transforms import (
    AutoAugment,
    Cutout,
    Flip,
    Normalise,
    RandomCrop,
    Transform,
)

__all__ = [
    "CIFAR10_POLICY",
    "Augmentation",
    "AutoAugment",
    "Cutout",
    "Flip",
    "Normalise",
    "RandomCrop",
    "Transform",
]


@dataclass(frozen=True)
class Augmentation:
    """Transforms, one after the other.

    On an accelerator, call it with as many images as memory allows, a whole epoch of CIFAR if it can be: a
    small batch takes almost as long as a large one.
    """

    transforms: tuple[Transform, ...]

    @classmethod
    def cifar10(cls, normalise: Normalise | None = None) -> "Augmentation":
        """The paper's recipe for CIFAR-10: crop, flip, AutoAugment, normalise, cut out 16×16.

        Args:
            normalise: By the statistics of other data, where it is for other data.
        """
        return cls((RandomCrop(4), Flip(), AutoAugment(), normalise or Normalise.cifar10(), Cutout(16)))

    @classmethod
    def cifar100(cls, normalise: Normalise | None = None) -> "Augmentation":
        """The paper's recipe for CIFAR-100: as for CIFAR-10, with its own statistics, and cut out 8×8."""
        return cls((RandomCrop(4), Flip(), AutoAugment(), normalise or Normalise.cifar100(), Cutout(8)))

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Augment a batch (B, C, H, W) with a generator on the same device."""
        if images.dim() != 4:
            raise ValueError(f"expected a batch of images (B, C, H, W), got shape {tuple(images.shape)}")
        if generator.device.type != images.device.type:
            raise ValueError(
                f"the images are on {images.device} and the generator on {generator.device}: "
                f"make it with torch.Generator({str(images.device)!r})"
            )
        for transform in self.transforms:
            images = transform(images, generator)
        return images
