"""A vision transformer and a ConvNeXt, sized for images of 32 × 32 pixels."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rheobase.training.models.initialisation import initialise


class Attention(nn.Module):
    """Self-attention of tokens (B, N, C)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the width {width} must be a multiple of the number of heads, {heads}")
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).reshape(B, N, C))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and two linear layers, each behind a layer norm and with a sum around it."""

    def __init__(self, width: int, heads: int, expansion: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, expansion * width), nn.GELU(), nn.Linear(expansion * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """Three convolutions to tokens, blocks of attention, and the mean of the tokens."""

    def __init__(
        self, classes: int, channels: int, size: int, width: int, depth: int, heads: int, dropout: float
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_convolution(channels, width // 4, 1), *_convolution(width // 4, width // 2, 2),
            nn.Conv2d(width // 2, width, 3, 2, 1),
        )  # fmt: skip
        self.positions = nn.Parameter(torch.zeros(1, (size // 4) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, 2, dropout) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        _initialise(self)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]


class ConvBlock(nn.Module):
    """A depthwise convolution, a layer norm over channels and two linear layers, with a sum around them."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.scale, self.dropout = nn.Parameter(torch.full((width,), 0.1)), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y = self.mlp(self.norm(self.depthwise(x).permute(0, 2, 3, 1))) * self.scale
        return x + self.dropout(y).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of images (B, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        moved = x.permute(0, 2, 3, 1)
        return F.layer_norm(moved, self.normalized_shape, self.weight, self.bias, self.eps).permute(
            0, 3, 1, 2
        )


class ConvNeXt(nn.Module):
    """Stages of convolutional blocks, each at half the resolution of the one before."""

    def __init__(
        self, classes: int, channels: int, widths: tuple[int, ...], depth: int, dropout: float
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, widths[0], 2, 2), ChannelNorm(widths[0])]
        for number, width in enumerate(widths):
            if number:
                layers += [ChannelNorm(widths[number - 1]), nn.Conv2d(widths[number - 1], width, 2, 2)]
            layers += [ConvBlock(width, dropout) for _ in range(depth)]
        self.features = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(widths[-1]), nn.Linear(widths[-1], classes)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.features(x).mean([2, 3])))  # type: ignore[no-any-return]


def vit(
    classes: int = 10, *, channels: int = 3, size: int = 32, width: int = 256, depth: int = 7, heads: int = 4,
    dropout: float = 0.1,
) -> VisionTransformer:  # fmt: skip
    """Build a vision transformer with a stem of convolutions.

    Args:
        classes: Number of outputs.
        channels: Number of channels of the images.
        size: Width of the images, a multiple of 4.
        width: Features of a token, a multiple of 4.
        depth: Number of blocks.
        heads: Heads of the attention.
        dropout: Share of the values that a block drops in training.
    """
    if size < 4 or size % 4:
        raise ValueError(f"the stem halves its images twice: size must be a multiple of 4, got {size}")
    return VisionTransformer(classes, channels, size, width, depth, heads, dropout)


def convnext(
    classes: int = 10, *, channels: int = 3, widths: tuple[int, ...] = (96, 192, 384), depth: int = 3,
    dropout: float = 0.1,
) -> ConvNeXt:  # fmt: skip
    """Build a ConvNeXt for images whose width is a multiple of 2 to the power of its stages.

    Args:
        classes: Number of outputs.
        channels: Number of channels of the images.
        widths: Channels of each stage.
        depth: Blocks of each stage.
        dropout: Share of the values that a block drops in training.
    """
    return ConvNeXt(classes, channels, widths, depth, dropout)


def _convolution(inputs: int, outputs: int, stride: int) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def _initialise(model: nn.Module) -> None:
    initialise(model)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
