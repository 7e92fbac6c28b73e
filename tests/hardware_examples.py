"""What the hardware tests share: small converted networks, and labels for them."""

from typing import Any

import torch
from torch import Tensor, nn

from rheobase import HALF, SNN, convert
from rheobase.network import Poisson


def labelled(snn: SNN, count: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs, with the network's own answers for labels."""
    assert snn.input_shape is not None
    x = torch.rand(count, *snn.input_shape, generator=torch.Generator().manual_seed(1))
    return x, snn.limit(x).flatten(1).argmax(1)


def converted(
    *layers: nn.Module, shape: tuple[int, ...] = (2, 16, 16), bias: bool = False, **options: Any
) -> SNN:
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.Flatten()).eval()
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            if not bias:
                module.bias = None
    return convert(
        model, "max-norm", torch.rand(16, *shape), **{"initial": HALF, "coding": Poisson(), **options}
    )


class Branches(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 2, 3, padding=1)
        self.arms = nn.ModuleList([nn.Conv2d(2, 2, 3, padding=1) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        y = torch.relu(self.arms[0](x))
        for arm in self.arms[1:]:
            y = torch.relu(y + arm(x))
        return y


def layer(inputs: int, outputs: int, kernel: int = 3, count: int = 1, **options: Any) -> list[nn.Module]:
    conv = [nn.Conv2d(inputs, outputs, kernel, **{"padding": kernel // 2, **options}) for _ in range(count)]
    return [m for c in conv for m in (c, nn.ReLU())]
