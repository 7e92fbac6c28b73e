"""What stands at a site while the network is still an ordinary one."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Activation(nn.Module, ABC):
    """An activation of this package: graph capture takes every subclass for a site."""

    @property
    @abstractmethod
    def bound(self) -> float | None:
        """The largest value it can give, if there is one."""


class Clip(Activation):
    """The trainable clip a = min(max(z, 0), θ), with one θ for the layer.

    The gradient with respect to θ is one where z > θ and zero elsewhere.
    """

    def __init__(self, threshold: float = 4.0) -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"a clip must start above zero, got {threshold}")
        self.threshold = nn.Parameter(torch.tensor(float(threshold)))

    @property
    def bound(self) -> float:
        return self.threshold.item()

    def forward(self, z: Tensor) -> Tensor:
        return torch.minimum(torch.relu(z), self.threshold)

    def extra_repr(self) -> str:
        return f"threshold={self.bound:.4g}"


class Rectifier(Activation):
    """The plain activation of a captured network: max(z, 0), cut at a bound where there is one."""

    def __init__(self, bound: float | None = None) -> None:
        super().__init__()
        self._bound = bound

    @property
    def bound(self) -> float | None:
        return self._bound

    def forward(self, z: Tensor) -> Tensor:
        return z.clamp(min=0, max=self._bound)

    def extra_repr(self) -> str:
        return "" if self._bound is None else f"bound={self._bound:g}"
