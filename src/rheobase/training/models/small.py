"""Networks that train in seconds on a CPU, for small grey images such as the digits."""

from torch import nn

from rheobase.training.models.initialisation import initialise
from rheobase.training.models.resnet import ResNet


def small(
    classes: int = 10, *, channels: int = 1, size: int = 8, initial_weights: str = "kaiming"
) -> nn.Sequential:
    """Build three 3×3 convolutions with batch norm, two average pools and one linear layer.

    Args:
        classes: Number of outputs.
        channels: Number of channels of the images.
        size: Width of the images, a multiple of 4.
        initial_weights: "kaiming" or "torch"; see `INITIAL_WEIGHTS`.
    """
    if size < 4 or size % 4:
        raise ValueError(
            f"the small network halves its images twice: size must be a multiple of 4, got {size}"
        )
    model = nn.Sequential(
        *_convolution(channels, 16),
        *_convolution(16, 32),
        nn.AvgPool2d(2),
        *_convolution(32, 32),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (size // 4) ** 2, classes),
    )
    initialise(model, initial_weights)
    return model


def small_residual(classes: int = 10, *, channels: int = 1) -> ResNet:
    """Build a stem and two residual blocks, of 16 and 32 channels, for images of any size.

    Args:
        classes: Number of outputs.
        channels: Number of channels of the images.
    """
    return ResNet((1, 1), (16, 32), classes, nn.Sequential(*_convolution(channels, 16)))


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
