"""VGG-16 with biased convolutions, batch norm and the 4096-4096 head."""

from torch import Tensor, nn

from rheobase.io import find_name
from rheobase.training.models.initialisation import initialise

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
POOLS: dict[str, type[nn.Module]] = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}


class VGG(nn.Module):
    """Blocks of 3×3 convolutions, each block followed by a 2×2 pool, then three linear layers.

    At 32×32 there are 15 activations over 284,672 units.
    """

    def __init__(
        self, classes: int, size: int, pool: type[nn.Module], dropout: float, initial_weights: str
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(*_features(pool, dropout))
        side = size // 2 ** len(BLOCKS)
        self.classifier = nn.Sequential(
            nn.Flatten(),
            *_linear(BLOCKS[-1][-1] * side**2, 4096, dropout),
            *_linear(4096, 4096, dropout),
            nn.Linear(4096, classes),
        )
        initialise(self, initial_weights)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def vgg16(
    classes: int = 10,
    *,
    size: int = 32,
    pool: str = "average",
    dropout: float = 0.0,
    initial_weights: str = "kaiming",
) -> VGG:
    """Build a VGG-16 for square RGB images.

    Args:
        classes: Number of outputs.
        size: Width of the images: 32 for CIFAR, 224 for ImageNet, any multiple of 32.
        pool: "average", which a spiking network can compute, or "max".
        dropout: Probability of dropping a unit after each activation.
        initial_weights: "kaiming" or "torch"; see `INITIAL_WEIGHTS`.
    """
    shrinkage = 2 ** len(BLOCKS)
    if size < shrinkage or size % shrinkage:
        raise ValueError(
            f"VGG-16 halves its images {len(BLOCKS)} times: size must be a multiple of "
            f"{shrinkage}, got {size}"
        )
    return VGG(classes, size, find_name("pool", pool, POOLS), dropout, initial_weights)


def _features(pool: type[nn.Module], dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    inputs = 3
    for block in BLOCKS:
        for outputs in block:
            layers += [
                nn.Conv2d(inputs, outputs, 3, padding=1),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.Dropout(dropout),
            ]
            inputs = outputs
        layers.append(pool(2))
    return layers


def _linear(inputs: int, outputs: int, dropout: float) -> list[nn.Module]:
    return [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)]
