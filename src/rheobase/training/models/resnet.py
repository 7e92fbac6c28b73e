"""Residual networks of basic blocks with 1×1 convolution shortcuts."""

from collections.abc import Sequence

from torch import Tensor, nn

from rheobase.training.models.initialisation import initialise

# The largest images for a stem of stride 1.
SMALL_IMAGE = 64


class Block(nn.Module):
    """Two 3×3 convolutions added to a shortcut, with one activation inside and one after the add."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu1(self.norm1(self.conv1(x)))
        total: Tensor = self.relu2(self.norm2(self.conv2(inner)) + self.shortcut(x))
        return total


class ResNet(nn.Module):
    """A stem, stages of blocks that halve the image from the second on, an average pool, a linear layer."""

    def __init__(
        self,
        depths: Sequence[int],
        widths: Sequence[int],
        classes: int,
        stem: nn.Sequential,
        initial_weights: str = "kaiming",
    ) -> None:
        super().__init__()
        self.stem = stem
        stages = []
        inputs = widths[0]
        for number, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            stride = 1 if number == 0 else 2
            blocks = [Block(inputs, width, stride)] + [Block(width, width) for _ in range(depth - 1)]
            stages.append(nn.Sequential(*blocks))
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.head = nn.Linear(inputs, classes)
        initialise(self, initial_weights)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.flatten(self.pool(self.stages(self.stem(x)))))
        return logits


def resnet20(classes: int = 10, *, size: int = 32, initial_weights: str = "kaiming") -> ResNet:
    """Build the narrow ResNet-20 (widths 16-32-64): at 32×32, 19 activations over 188,416 units.

    Args:
        classes: Number of outputs.
        size: Width of the images; see `resnet18`.
        initial_weights: "kaiming" or "torch"; see `INITIAL_WEIGHTS`.
    """
    return _build((3, 3, 3), (16, 32, 64), classes, size, initial_weights)


def resnet18(classes: int = 10, *, size: int = 32, initial_weights: str = "kaiming") -> ResNet:
    """Build a ResNet-18 (widths 64-128-256-512).

    Up to 64×64 the stem is one 3×3 convolution of stride 1. For larger images it is the usual 7×7
    convolution of stride 2 and a 3×3 pool of stride 2, but an average pool, which a spiking network can
    compute, instead of a maximum. Some published conversions keep the 3×3 stem at 224×224, at fifteen times
    the operations; build that network with `size=32`, since nothing after the stem depends on the size.

    Args:
        classes: Number of outputs.
        size: Width of the images, which determines the stem.
        initial_weights: "kaiming" or "torch"; see `INITIAL_WEIGHTS`.
    """
    return _build((2, 2, 2, 2), (64, 128, 256, 512), classes, size, initial_weights)


def _build(
    depths: Sequence[int], widths: Sequence[int], classes: int, size: int, initial_weights: str
) -> ResNet:
    if size < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    small = size <= SMALL_IMAGE
    conv = (
        nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        if small
        else nn.Conv2d(3, widths[0], 7, stride=2, padding=3, bias=False)
    )
    stem = nn.Sequential(conv, nn.BatchNorm2d(widths[0]), nn.ReLU())
    if not small:
        stem.append(nn.AvgPool2d(3, stride=2, padding=1))
    return ResNet(depths, widths, classes, stem, initial_weights)
