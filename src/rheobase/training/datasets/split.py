"""Datasets in memory: pixels and labels of two splits, and the normalisation of pixels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite

import torch
from torch import Tensor


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Turn uint8 pixels (…, C, H, W) into (pixel/255 − mean) / std, in float32 on the pixels' device."""
    if images.dtype != torch.uint8:
        raise TypeError(f"normalise takes uint8 pixels, got {images.dtype}: are they normalised already?")
    if images.ndim < 3 or images.shape[-3] != len(mean):
        raise ValueError(
            f"normalise takes images of {len(mean)} channels (…, C, H, W), got {tuple(images.shape)}"
        )
    # 255 is a tensor, because CUDA divides by a number by multiplying with its rounded reciprocal.
    full, centre, spread = (
        torch.tensor(v, dtype=torch.float32, device=images.device).view(-1, 1, 1) for v in (255.0, mean, std)
    )
    return images.to(torch.float32).div_(full).sub_(centre).div_(spread)


def find_largest(mean: tuple[float, ...], std: tuple[float, ...]) -> float:
    """The largest magnitude that a normalised pixel can have."""
    extremes = torch.tensor([0, 255], dtype=torch.uint8).expand(len(mean), 1, 2)
    return normalise(extremes, mean, std).abs().max().item()


@dataclass(frozen=True, eq=False)
class Split:
    """Uint8 images (N, C, H, W) and int64 labels (N,) on one device.

    ``mean`` and ``std`` are those of pixel/255 per channel.
    """

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4:
            raise ValueError(
                f"images must be uint8 (N, C, H, W), got {self.images.dtype} {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 ({len(self.images)},), one per image, "
                f"got {self.labels.dtype} {tuple(self.labels.shape)}"
            )
        if self.labels.device != self.images.device:
            raise ValueError(
                f"images and labels must be on one device, got {self.images.device} and {self.labels.device}"
            )
        channels = self.images.shape[1]
        finite = all(isfinite(number) for number in (*self.mean, *self.std))
        if not len(self.mean) == len(self.std) == channels or not finite or not all(s > 0 for s in self.std):
            raise ValueError(
                f"expected a finite mean and a positive std for each of {channels} channels, got {self.mean} "
                f"and {self.std} (--mean and --std on the command line)"
            )

    def __len__(self) -> int:
        return len(self.images)

    def normalise(self, images: Tensor) -> Tensor:
        """Turn uint8 pixels into network inputs, on their device."""
        return normalise(images, self.mean, self.std)

    def to_rgb(self) -> "Split":
        """Grey images with three equal channels, for networks of RGB images; others as they are."""
        if self.images.shape[1] != 1:
            return self
        return replace(self, images=self.images.expand(-1, 3, -1, -1), mean=self.mean * 3, std=self.std * 3)

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (normalised images, labels) in order; the last batch may be smaller."""
        pairs = zip(torch.split(self.images, batch_size), torch.split(self.labels, batch_size), strict=True)
        for images, labels in pairs:
            yield self.normalise(images), labels

    def take(self, n: int, seed: int = 0) -> "Split":
        """Select n images at random, as a function of the seed."""
        if not 1 <= n <= len(self):
            raise ValueError(f"cannot take {n} of {len(self)} images")
        return self._select(self._shuffled(seed)[:n])

    def hold_out(self, n: int, seed: int = 0) -> tuple["Split", "Split"]:
        """Split into (the rest in its old order, n images); the n images are those of ``take(n, seed)``."""
        if not 1 <= n < len(self):
            raise ValueError(f"cannot hold out {n} of {len(self)} images: both parts need at least one")
        order = self._shuffled(seed)
        return self._select(order[n:].sort().values), self._select(order[:n])

    def to(self, device: torch.device | str) -> "Split":
        """Move images and labels to a device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def _shuffled(self, seed: int) -> Tensor:
        # Drawn on the CPU, so that the selection does not depend on the device.
        return torch.randperm(len(self), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")

    def _select(self, chosen: Tensor) -> "Split":
        chosen = chosen.to(self.images.device)
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named dataset: the names of its classes, and its training and test splits."""

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split

    def __post_init__(self) -> None:
        for half, split in (("train", self.train), ("test", self.test)):
            if len(split) == 0:
                raise ValueError(f"the {half} split of {self.name} is empty")
            low, high = int(split.labels.min()), int(split.labels.max())
            if low < 0 or high >= len(self.classes):
                raise ValueError(
                    f"the {half} labels of {self.name} run from {low} to {high}, "
                    f"but there are {len(self.classes)} classes"
                )
