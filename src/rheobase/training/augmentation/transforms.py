"""Transforms of a batch of images, random for each image.

A transform is called with the images and a generator on the same device. None loops over images or waits for
an accelerator. Shape letters: B batch, C channels, H height, W width, A actions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import torch
from torch import Generator, Tensor

from rheobase.training.augmentation.actions import Action, Actions, act, sample
from rheobase.training.augmentation.policy import CIFAR10_POLICY, Policy

Transform = Callable[[Tensor, Generator], Tensor]


@dataclass(frozen=True)
class RandomCrop:
    """Shift each image by up to `pad` pixels in each direction, filled with black."""

    pad: int = 4

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Crop a batch (B, C, H, W) of any type."""
        batch, _, height, width = images.shape
        device = images.device
        shift_B2 = torch.randint(-self.pad, self.pad + 1, (batch, 2), generator=generator, device=device)
        y_BH1 = torch.arange(height, device=device)[:, None] + shift_B2[:, 0, None, None]
        x_B1W = torch.arange(width, device=device) + shift_B2[:, 1, None, None]
        return sample(images, y_BH1, x_B1W, fill=0)


@dataclass(frozen=True)
class Flip:
    """Flip each image horizontally with the given probability."""

    probability: float = 0.5

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Flip images of a batch (B, C, H, W) of any type."""
        coin_B = torch.rand(len(images), generator=generator, dtype=torch.float32, device=images.device)
        return torch.where((coin_B < self.probability)[:, None, None, None], images.flip(-1), images)


@dataclass(frozen=True)
class AutoAugment:
    """Choose a sub-policy for each image, and apply each of its two operations with its probability.

    Magnitudes follow the common re-implementation: ten linear levels, translations up to 150/331 of the
    width. Moves take the nearest pixel and fill with grey 128; rotations go in both directions, as in the
    paper. Each operation equals Pillow's (see `actions`).
    """

    policy: Policy = CIFAR10_POLICY

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Augment a batch (B, 3, H, W) of uint8."""
        require_rgb(images, "AutoAugment")
        actions = _tabulate(self.policy, images.shape[2], images.shape[3], images.device)
        for chosen_B in self.draw(len(images), generator, images.device).unbind(1):
            images = act(images, actions, chosen_B, pick=images.device.type == "cpu")
        return images

    @property
    def actions(self) -> list[Action]:
        """The distinct operations, levels and signs of the policy; `draw` numbers them from 1."""
        operations = {(name, level) for sub_policy in self.policy for name, _, level in sub_policy}
        return [(name, level, sign) for (name, level), sign in product(sorted(operations), (1, -1))]

    def draw(self, batch: int, generator: Generator, device: torch.device) -> Tensor:
        """Draw the two actions (B, 2) of each image; 0 means none."""
        choice, probability = _tabulate_draws(self.policy, device)
        sub_policy_B = torch.randint(len(self.policy), (batch,), generator=generator, device=device)
        sign_B21 = torch.randint(2, (batch, 2, 1), generator=generator, device=device)
        coin_B2 = torch.rand(batch, 2, generator=generator, dtype=torch.float32, device=device)
        chosen_B2 = choice[sub_policy_B].gather(2, sign_B21)[..., 0]
        return torch.where(coin_B2 < probability[sub_policy_B], chosen_B2, 0)


@lru_cache(maxsize=16)
def _tabulate(policy: Policy, height: int, width: int, device: torch.device) -> Actions:
    return Actions.tabulate(AutoAugment(policy).actions, height, width, device)


@lru_cache(maxsize=16)
def _tabulate_draws(policy: Policy, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each sub-policy and slot: the action of each sign, and the probability."""
    rows = {action: row for row, action in enumerate(AutoAugment(policy).actions, start=1)}
    choice = [[[rows[name, level, sign] for sign in (1, -1)] for name, _, level in sub] for sub in policy]
    probability = [[probability for _, probability, _ in sub] for sub in policy]
    return torch.tensor(choice, device=device), torch.tensor(probability, dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Normalise:
    """Turn grey levels 0…255 into (level/255 − mean) / std per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images: Tensor, generator: Generator | None = None) -> Tensor:
        """Normalise a batch (B, C, H, W) of uint8; the generator is not used."""
        scale_C11, shift_C11 = _tabulate_statistics(tuple(self.mean), tuple(self.std), images.device)
        return (images * scale_C11).sub_(shift_C11)


@lru_cache(maxsize=16)
def _tabulate_statistics(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    scale = [1 / (255 * s) for s in std]
    shift = [m / s for m, s in zip(mean, std, strict=True)]
    scale_C11, shift_C11 = torch.tensor((scale, shift), dtype=torch.float32, device=device)[..., None, None]
    return scale_C11, shift_C11


@dataclass(frozen=True)
class Cutout:
    """Set a square of each image to zero: black, or the mean colour after `Normalise`.

    The centre is uniform over the image, so squares may extend beyond its border.
    DeVries & Taylor, "Improved Regularization of Convolutional Neural Networks with Cutout", 2017.
    """

    length: int

    def __call__(self, images: Tensor, generator: Generator) -> Tensor:
        """Cut a square out of each image of a batch (B, C, H, W) of any type."""
        batch, _, height, width = images.shape
        in_rows = self._span(height, batch, generator, images.device)[:, None, :, None]
        in_columns = self._span(width, batch, generator, images.device)[:, None, None, :]
        return images.masked_fill(in_rows & in_columns, 0)

    def _span(self, size: int, batch: int, generator: Generator, device: torch.device) -> Tensor:
        """Whether each of `size` pixels is within the square, along one dimension."""
        first_B1 = torch.randint(size, (batch, 1), generator=generator, device=device) - self.length // 2
        place = torch.arange(size, device=device)
        return (place >= first_B1) & (place < first_B1 + self.length)


def require_rgb(images: Tensor, transform: str) -> None:
    """Raise a ValueError unless these are RGB images of uint8."""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] != 3:
        raise ValueError(
            f"{transform} needs RGB images as uint8 of shape (B, 3, H, W), got {images.dtype} of shape "
            f"{tuple(images.shape)}; choose another augmentation for this data"
        )
