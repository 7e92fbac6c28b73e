"""What stands at a site while the network is still an ordinary one."""

import torch
from torch import Tensor, nn


class Clip(nn.Module):
    """The trainable clip a = min(max(z, 0), θ), with one θ for the layer.

    The gradient with respect to θ is one where z > θ and zero elsewhere.
    """

    def __init__(self, threshold: float = 4.0) -> None:
        super().__init__()
        if not threshold > 0:
            raise ValueError(f"a clip must start above zero, got {threshold}")
        self.threshold = nn.Parameter(torch.tensor(float(threshold)))

    def forward(self, z: Tensor) -> Tensor:
        return torch.minimum(torch.relu(z), self.threshold)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold.item():.4g}"
