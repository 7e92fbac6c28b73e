"""A training of less than a second: noisy textures of three classes and a network that learns them."""

import signal
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rheobase.network import Clip
from rheobase.training import Folder, Recipe, Split, train
from rheobase.training.trainer import Trained

QUICK = Recipe(epochs=3, batch_size=16, learning_rate=0.05, augment="crop-flip", seed=5)


def textures(count: int = 70) -> Split:
    """Noisy images of three classes that cropping leaves apart: rows, columns and a checkerboard."""
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    images = torch.randint(0, 100, (count, 1, 6, 6), generator=draws)
    row, column = torch.arange(6)[:, None], torch.arange(6)
    for label, bright in enumerate((row + 0 * column, column + 0 * row, row + column)):
        images[labels == label] += 120 * (bright % 2)
    return Split(images.to(torch.uint8), labels, (0.4,), (0.25,))


def network(seed: int = 0, classes: int = 3) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            Clip(2.0),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(144, classes),
        )


def quietly(model: nn.Module, data: Split | Folder, recipe: Recipe, **options: Any) -> Trained:
    return train(model, data, recipe, progress=False, **options)


def equal(left: nn.Module, right: nn.Module) -> bool:
    one, other = left.state_dict(), right.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def without_seconds(trained: Trained) -> list[object]:
    return [replace(epoch, seconds=0) for epoch in trained.history]


class Alarm(nn.Module):
    """Passes its input on, and presses Ctrl-C in the given call made in training."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call, self.calls = call, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if self.training and self.calls == self.call:
            signal.raise_signal(signal.SIGINT)
        return x


def alarmed(call: int) -> nn.Sequential:
    return nn.Sequential(Alarm(call), *network())
